//! Real keys, real signatures: some made here, some of other implementations.

use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use serde_json::{Value, json};

use super::*;

/// In 2026.
const NOW: u64 = 1_790_000_000;
/// An RSA key and a token signed by Python's `cryptography`; only the public half was kept.
const RSA_KEYS: &str = include_str!("../../testdata/jwt/rsa.jwks.json");
const RSA_TOKEN: &str = include_str!("../../testdata/jwt/rs256.token");

fn encode(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let letters = bytes.chunks(3).flat_map(|group| {
        let bits = group.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - group.len()));
        (0..=group.len()).map(move |n| char::from(LETTERS[(bits >> (18 - 6 * n)) as usize & 63]))
    });
    letters.collect()
}

/// Whoever has one of these is the issuer.
struct Issuer {
    ed: Ed25519KeyPair,
    ec: EcdsaKeyPair,
    chance: SystemRandom,
}

impl Issuer {
    fn new() -> Self {
        let chance = SystemRandom::new();
        let ed = Ed25519KeyPair::generate_pkcs8(&chance).expect("chance");
        let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let ec = EcdsaKeyPair::generate_pkcs8(kind, &chance).expect("chance");
        Self {
            ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).expect("just made"),
            ec: EcdsaKeyPair::from_pkcs8(kind, ec.as_ref(), &chance).expect("just made"),
            chance,
        }
    }

    fn keys(&self) -> Value {
        let point = &self.ec.public_key().as_ref()[1..];
        let (x, y) = (encode(&point[..32]), encode(&point[32..]));
        let ed = encode(self.ed.public_key().as_ref());
        json!({ "keys": [
            { "kty": "oct", "kid": "shared", "k": "c2VjcmV0" },
            { "kty": "OKP", "crv": "Ed25519", "kid": "ed", "alg": "EdDSA", "use": "sig", "x": ed },
            { "kty": "EC", "crv": "P-256", "kid": "ec", "x": x, "y": y },
        ] })
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| encode(value.to_string().as_bytes());
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = match header["alg"].as_str() {
            Some("ES256") => {
                let signature = self.ec.sign(&self.chance, signed.as_bytes()).expect("chance");
                encode(signature.as_ref())
            }
            _ => encode(self.ed.sign(signed.as_bytes()).as_ref()),
        };
        format!("{signed}.{signature}")
    }
}

fn jwt(keys: &str) -> Jwt {
    let config = JwtConfig {
        issuer: "https://login".to_owned(),
        audience: vec!["shop".to_owned()],
        ..JwtConfig::default()
    };
    let keys = Keys::read(keys.as_bytes()).expect("keys");
    let header = http::header::AUTHORIZATION;
    Jwt { config, header, keys, remembered: Mutex::default() }
}

fn good() -> Value {
    json!({ "iss": "https://login", "aud": "shop", "sub": "ann", "exp": NOW + 60, "nbf": NOW - 60 })
}

fn with(mut object: Value, key: &str, value: Value) -> Value {
    match value {
        Value::Null => drop(object.as_object_mut().expect("an object").remove(key)),
        value => object[key] = value,
    }
    object
}

#[test]
fn each_algorithm_is_verified_by_keys_of_its_own_kind() {
    let issuer = Issuer::new();
    let jwt = jwt(&issuer.keys().to_string());
    let user = |token: &str| jwt.user_at(token.as_bytes(), NOW);
    let token = |header: Value| issuer.sign(&header, &good());
    assert_eq!(user(&token(json!({ "alg": "EdDSA", "kid": "ed" }))).as_deref(), Some("ann"));
    assert_eq!(user(&token(json!({ "alg": "ES256", "kid": "ec" }))).as_deref(), Some("ann"));
    assert_eq!(
        user(&token(json!({ "alg": "EdDSA" }))).as_deref(),
        Some("ann"),
        "it can be no other"
    );
    for header in [
        json!({ "alg": "none" }),
        json!({ "alg": "None" }),
        json!({ "alg": "HS256", "kid": "shared" }),
        json!({ "alg": "HS256", "kid": "ed" }),
        json!({ "alg": "RS256" }),
        json!({ "alg": "ES256", "kid": "ed" }),
        json!({ "alg": "EdDSA", "kid": "another" }),
        json!({ "alg": "EdDSA", "kid": "ed", "crit": ["b64"], "b64": false }),
        json!({ "kid": "ed" }),
    ] {
        assert_eq!(user(&token(header.clone())), None, "{header}");
    }
    let unsigned = token(json!({ "alg": "none" }));
    let (signed, _) = unsigned.rsplit_once('.').expect("three parts");
    assert_eq!(user(&format!("{signed}.")), None);
    let stranger = Issuer::new().sign(&json!({ "alg": "EdDSA", "kid": "ed" }), &good());
    assert_eq!(user(&stranger), None, "somebody else's key");
}

#[test]
fn rs256_of_another_implementation_is_verified() {
    let (jwt, token) = (jwt(RSA_KEYS), RSA_TOKEN.trim_end());
    assert_eq!(jwt.user_at(token.as_bytes(), NOW).as_deref(), Some("ann"));
    for at in (0..token.len()).step_by(7) {
        let mut bad = token.as_bytes().to_vec();
        bad[at] = if bad[at] == b'A' { b'B' } else { b'A' };
        assert_eq!(jwt.user_at(&bad, NOW), None, "byte {at} is another");
    }
}

/// RFC 7515, A.3, whose payload has claims of its own.
#[test]
fn the_signature_of_the_rfc_is_verified() {
    let keys = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;
    let token = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
    let (signed, signature) = token.rsplit_once('.').expect("three parts");
    let keys = Keys::read(keys.as_bytes()).expect("keys");
    let key = keys.find(keys::Algorithm::ES256, None).expect("one");
    let signature = base64::decode(signature.as_bytes()).expect("base64url");
    assert!(key.verifies(signed.as_bytes(), &signature));
    assert!(!key.verifies(&signed.as_bytes()[1..], &signature));
}

#[test]
fn a_token_is_of_the_issuer_for_us_and_of_now() {
    let issuer = Issuer::new();
    let jwt = jwt(&issuer.keys().to_string());
    let user = |claims: Value| {
        jwt.user_at(issuer.sign(&json!({ "alg": "EdDSA" }), &claims).as_bytes(), NOW)
    };
    let is = |key: &str, value: Value| user(with(good(), key, value)).is_some();
    assert!(is("aud", json!(["news", "shop"])) && is("nbf", Value::Null));
    // Clocks differ by the leeway of 30 s, and no more.
    assert!(is("exp", json!(NOW - 29)) && is("nbf", json!(NOW + 30)));
    assert!(!is("exp", json!(NOW - 30)) && !is("nbf", json!(NOW + 31)));
    for (key, wrong) in [
        ("exp", vec![Value::Null, json!("never"), json!([NOW + 60])]),
        ("nbf", vec![json!("now"), json!({})]),
        ("iss", vec![Value::Null, json!("https://login/"), json!(["https://login"])]),
        (
            "aud",
            vec![Value::Null, json!("news"), json!([]), json!({ "shop": 1 }), json!([["shop"]])],
        ),
        ("sub", vec![Value::Null, json!(""), json!(7)]),
    ] {
        for value in wrong {
            assert!(!is(key, value.clone()), "{key} = {value}");
        }
    }
}

#[test]
fn what_was_good_is_remembered_until_it_ends() {
    let issuer = Issuer::new();
    let jwt = jwt(&issuer.keys().to_string());
    let token = issuer.sign(&json!({ "alg": "ES256" }), &good());
    let at = |now| jwt.user_at(token.as_bytes(), now).is_some();
    assert!(at(NOW) && at(NOW + 89) && !at(NOW + 90));
}

#[test]
fn tokens_come_with_bearer_or_without() {
    let issuer = Issuer::new();
    let now = unix_ms() / 1000;
    let claims = with(with(good(), "exp", json!(now + 600)), "nbf", Value::Null);
    let token = issuer.sign(&json!({ "alg": "EdDSA" }), &claims);
    let jwt = jwt(&issuer.keys().to_string());
    for (value, good) in [
        (format!("Bearer {token}"), true),
        (format!("bearer {token}"), true),
        (token.clone(), true),
        (format!("Basic {token}"), false),
        ("Bearer ".to_owned(), false),
        (format!("Bearer {}", "a".repeat(LONGEST + 1)), false),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", value.parse().expect("a value"));
        assert_eq!(jwt.user(&headers).is_some(), good, "{value:.20}");
    }
}

#[test]
fn a_file_without_usable_keys_says_what_is_wrong() {
    for (text, why) in [
        ("", "not a JWK Set"),
        ("[]", "not a JWK Set"),
        (r#"{"keys":[]}"#, "no key for RS256, ES256 or EdDSA"),
        (r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#, "no key for RS256"),
        (
            r#"{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}"#,
            "keys.0: n has 3 bytes, allowed: 256",
        ),
        (r#"{"keys":[{"kty":"OKP","crv":"Ed25519"}]}"#, "keys.0: x is missing"),
        (r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"+/"}]}"#, "keys.0: x is not base64url"),
        (r#"{"keys":[{}]}"#, "keys.0: missing field `kty`"),
    ] {
        let told = Keys::read(text.as_bytes()).expect_err(text);
        assert!(told.contains(why), "{text}: {told}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        parts in proptest::collection::vec("[A-Za-z0-9_-]{0,60}", 0..5),
    ) {
        let jwt = jwt(RSA_KEYS);
        prop_assert_eq!(jwt.user_at(&bytes, NOW), None);
        prop_assert_eq!(jwt.user_at(parts.join(".").as_bytes(), NOW), None);
        let _ = Keys::read(&bytes);
    }

    /// Headers and claims of any shape behind a good signature.
    #[test]
    fn any_claims_are_read_without_panic(header in "\\PC{0,80}", claims in "\\PC{0,80}", number in any::<f64>()) {
        let issuer = Issuer::new();
        let jwt = jwt(&issuer.keys().to_string());
        let token = issuer.sign(&json!({ "alg": "EdDSA", "kid": header }), &json!({ "iss": claims }));
        prop_assert_eq!(jwt.user_at(token.as_bytes(), NOW), None);
        let odd = with(with(good(), "exp", json!(number)), "nbf", json!(-number));
        let token = issuer.sign(&json!({ "alg": "EdDSA" }), &odd);
        let _ = jwt.user_at(token.as_bytes(), NOW);
    }
}
