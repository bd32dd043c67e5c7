//! Users that prove who they are by an nkey: the gate checks their signatures, for a signature is for one server's
//! nonce, and tells brokers a user and a password in their name.

use std::collections::BTreeMap;
use std::fmt;

use crate::config::NatsConfig;
use crate::wire::nkey::UserKey;

/// What brokers are told in a user's name; nothing to those that ask for nothing.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl fmt::Debug for Credentials {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// All of them.
pub type Users = BTreeMap<UserKey, Credentials>;

/// Reads the passwords that the configuration names.
pub(crate) fn read(config: &NatsConfig) -> Result<Users, String> {
    let mut users = Users::new();
    for rule in &config.users {
        let password = match &rule.password_file {
            None => None,
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("cannot read the password in {path}: {error}"))?;
                Some(text.trim_end_matches(['\r', '\n']).to_owned())
            }
        };
        let user = rule.user.clone();
        // The configuration was checked: it is a key, and there once.
        users.insert(rule.nkey.parse()?, Credentials { user, password });
    }
    Ok(users)
}
