//! What is read of certificates: whose one is, and until when it is good. Whether it is genuine, rustls has checked.
//!
//! A certificate is DER (X.690): each value has a tag, a length and its bytes, and some are made of others. Of RFC 5280's
//! `TBSCertificate` (4.1) the fields stand in a fixed order, so those before the names and dates are passed over.

/// A certificate's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Certificate<'a> {
    /// Who has issued it, and for whom: two names, as they are encoded.
    pub(crate) issuer: &'a [u8],
    pub(crate) subject: &'a [u8],
    /// Seconds since 1970 after which it is no longer good.
    pub(crate) until: i64,
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Where its version stands, if it is not the first.
const VERSION: u8 = 0xa0;

impl<'a> Certificate<'a> {
    /// Reads one; none if it is not DER.
    pub(crate) fn read(der: &'a [u8]) -> Option<Self> {
        let (certificate, _) = expect(der, SEQUENCE)?;
        let (mut rest, _) = expect(certificate, SEQUENCE)?;
        if rest.first() == Some(&VERSION) {
            (_, rest) = expect(rest, VERSION)?;
        }
        // Its number and the kind of its signature.
        (_, rest) = expect(rest, INTEGER)?;
        (_, rest) = expect(rest, SEQUENCE)?;
        let (issuer, rest) = expect(rest, SEQUENCE)?;
        let (validity, rest) = expect(rest, SEQUENCE)?;
        let (subject, _) = expect(rest, SEQUENCE)?;
        let (_, _, until) = value(validity)?;
        let (tag, time, _) = value(until)?;
        Some(Self { issuer, subject, until: seconds(tag, time)? })
    }

    /// What tells whom it is for from all others, also once it is renewed.
    pub(crate) fn identity(&self) -> Vec<u8> {
        [self.issuer, self.subject].concat()
    }
}

/// The bytes of a value with this tag, and what follows it.
fn expect(der: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    let (tag, bytes, rest) = value(der)?;
    (tag == wanted).then_some((bytes, rest))
}

/// The tag and the bytes of the first value, and what follows it.
fn value(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, first, rest @ ..] = der else { return None };
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        // So many bytes of length; four are more than any certificate has.
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (bytes, rest) = rest.split_at_checked(length)?;
    Some((*tag, bytes, rest))
}

/// A time as RFC 5280 (4.1.2.5) writes it: `YYMMDDHHMMSSZ` up to 2049, `YYYYMMDDHHMMSSZ` from then on.
fn seconds(tag: u8, text: &[u8]) -> Option<i64> {
    let digits = text.strip_suffix(b"Z")?;
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(&digits[..2])?;
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4])?, &digits[4..]),
        _ => return None,
    };
    let part = |at: usize| number(&rest[2 * at..2 * at + 2]);
    let (month, day, hour, minute, second) = (part(0)?, part(1)?, part(2)?, part(3)?, part(4)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    Some(((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
}

fn number(digits: &[u8]) -> Option<i64> {
    let digit = |byte: &u8| char::from(*byte).to_digit(10).map(i64::from);
    digits.iter().try_fold(0, |sum, byte| Some(sum * 10 + digit(byte)?))
}

/// Days from 1970 to a date: years begin in March, so that the odd day comes last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let in_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + in_year
        - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};

    fn made(name: &str, year: i32) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["shop".to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = date_time_ymd(year, 3, 1);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("signed").der().to_vec()
    }

    #[test]
    fn a_certificate_says_whose_it_is_and_until_when() {
        let (ann, renewed, ben) = (made("ann", 2031), made("ann", 2060), made("ben", 2031));
        let read = |der| Certificate::read(der).expect("a certificate");
        assert_eq!(read(&ann).until, 1_930_089_600);
        assert_eq!(read(&renewed).until, 2_845_324_800);
        assert_eq!(read(&ann).identity(), read(&renewed).identity());
        assert_ne!(read(&ann).identity(), read(&ben).identity());
    }

    #[test]
    fn dates_are_counted_from_1970() {
        for (text, wanted) in [
            (&b"19700101000000Z"[..], Some(0)),
            (b"20000229235959Z", Some(951_868_799)),
            (b"20000301000000Z", Some(951_868_800)),
            (b"21000228000000Z", Some(4_107_456_000)),
            (b"99991231235959Z", Some(253_402_300_799)),
            (b"20001301000000Z", None),
            (b"2000010100000Z", None),
            (b"20000101000000", None),
            (b"2000010100000xZ", None),
        ] {
            assert_eq!(seconds(GENERALIZED_TIME, text), wanted, "{text:?}");
        }
        assert_eq!(seconds(UTC_TIME, b"700101000000Z"), Some(0));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(slips in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), end in any::<prop::sample::Index>()) {
            thread_local!(static GOOD: Vec<u8> = made("ann", 2031));
            let mut der = GOOD.with(Clone::clone);
            slips.into_iter().for_each(|(at, byte)| *at.get_mut(&mut der) = byte);
            let _ = Certificate::read(&der);
            let _ = Certificate::read(&der[..end.index(der.len())]);
        }
    }
}
