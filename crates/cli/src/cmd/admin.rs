//! Asking a running sidecar: one request to its admin port.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use serde_json::Value;

use super::Error;

/// Longest time that a sidecar may take to answer. It answers also under overload.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest answer that is read.
const LARGEST: u64 = 16 << 20;

/// Which sidecar, and how to prove that one may change something.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Admin {
    /// The sidecar's admin address.
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_ADMIN", default_value = "127.0.0.1:9901")]
    admin: String,
    /// The file with the token of its --admin-token-file; needed to change something.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

impl Admin {
    /// Of another process than a sidecar, which has another address.
    pub(crate) fn of(admin: String, token_file: Option<PathBuf>) -> Self {
        Self { admin, token_file }
    }

    pub(crate) fn get(&self, path: &str) -> Result<String, Error> {
        request(&self.admin, "GET", path, None, "")
    }

    /// Needs the token, if the sidecar has one.
    pub(crate) fn change(&self, method: &str, path: &str, body: &str) -> Result<String, Error> {
        let token = self.token_file.as_ref().map(|path| {
            let text = fs::read_to_string(path).map_err(|error| {
                Error::Input(format!("cannot read the token in {}: {error}", path.display()))
            })?;
            Ok(text.trim().to_owned())
        });
        request(&self.admin, method, path, token.transpose()?.as_deref(), body)
    }
}

/// Asks the sidecar at `address`; an answer that is no success is an error in its own words.
pub(crate) fn request(
    address: &str,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &str,
) -> Result<String, Error> {
    let exchange = || -> io::Result<(u16, String)> {
        let mut stream = connect(address)?;
        let authorization = token.map(|token| format!("authorization: Bearer {token}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{}\
             content-length: {}\r\n\r\n",
            authorization.unwrap_or_default(),
            body.len(),
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(LARGEST).read_to_end(&mut answer)?;
        parse(&String::from_utf8_lossy(&answer))
            .ok_or_else(|| io::Error::other("what answers there is no admin port"))
    };
    match exchange() {
        Ok((200..=299, body)) => Ok(body),
        Ok((status @ 400..=499, body)) => {
            Err(Error::Input(format!("{address} says {status}: {}", body.trim())))
        }
        Ok((status, body)) => {
            Err(Error::Failed(format!("{address} says {status}: {}", body.trim())))
        }
        Err(error) => Err(Error::Failed(format!("cannot ask {address}: {error}"))),
    }
}

/// An answer as JSON.
pub(crate) fn json(text: &str) -> Result<Value, Error> {
    serde_json::from_str(text).map_err(|_| Error::Failed("the answer is no JSON".to_owned()))
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let address = address.trim_start_matches("http://").trim_end_matches('/');
    let mut last = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()?.collect::<Vec<SocketAddr>>() {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Status and body of an answer that ended with its connection.
fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_a_status_and_a_body() {
        let answer = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 3\r\n\r\nno\n";
        assert_eq!(parse(answer), Some((401, "no\n".to_owned())));
        for wrong in ["", "HTTP/1.1 200 OK\r\n", "SSH-2.0\r\n\r\n", "HTTP/1.1 x\r\n\r\n"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
