//! What a request has to be before anything is asked about it: [`clean`].
//!
//! Rules, exempt paths and identities are worth what they look at. So what is looked at is first brought to the form in
//! which it goes on, byte for byte, and what the service could read in another way is turned away.

use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri};
use tidegate_http::path::{self, Ambiguous};

use crate::body::ProxyBody;
use crate::config::AmbiguousPaths;
use crate::forward::plain;
use crate::worker::{Settings, Worker};

/// Brings a request to the form in which it is looked at and goes on, or says why that cannot be.
pub(crate) fn clean<B>(
    worker: &Worker,
    settings: &Settings,
    request: &mut Request<B>,
) -> Result<(), Response<ProxyBody>> {
    if let Err(why) = normalise_path(request) {
        worker.counters.ambiguous.add(1);
        if settings.ambiguous_paths == AmbiguousPaths::Refuse || why == Ambiguous::Rootless {
            return Err(plain(StatusCode::BAD_REQUEST, format!("{why}\n")));
        }
    }
    Ok(())
}

/// Writes the path in its one form, if it has one.
fn normalise_path<B>(request: &mut Request<B>) -> Result<(), Ambiguous> {
    let uri = request.uri();
    // Tunnels have no path, and are turned away later; the server itself has none, either (RFC 9112, 3.2.4).
    let whole = *request.method() == Method::OPTIONS && uri.path() == "*";
    if *request.method() == Method::CONNECT || whole {
        return Ok(());
    }
    let normal = path::normalise(uri.path())?;
    if normal == uri.path() {
        return Ok(());
    }
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    // What was a path is one in another form.
    let written =
        PathAndQuery::try_from(format!("{normal}{query}")).map_err(|_| Ambiguous::Percent)?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(written);
    let uri = Uri::from_parts(parts).map_err(|_| Ambiguous::Rootless)?;
    *request.uri_mut() = uri;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_what_was_looked_at() {
        for (method, uri, normal) in [
            (Method::GET, "/a/../b?x=/../y%2f", Ok("/b?x=/../y%2f")),
            (Method::GET, "http://me@shop/%61?", Ok("http://me@shop/a?")),
            (Method::GET, "http://shop", Ok("http://shop/")),
            (Method::GET, "http://shop?q", Ok("http://shop/?q")),
            (Method::OPTIONS, "*", Ok("*")),
            (Method::GET, "*", Err(Ambiguous::Rootless)),
            (Method::GET, "shop", Err(Ambiguous::Rootless)),
            (Method::CONNECT, "shop:443", Ok("shop:443")),
            (Method::GET, "/a%2fb", Err(Ambiguous::Slash)),
        ] {
            let mut request = Request::builder().method(method).uri(uri).body(()).unwrap();
            let told = normalise_path(&mut request);
            assert_eq!(
                told.map(|()| request.uri().to_string()),
                normal.map(str::to_owned),
                "{uri}"
            );
        }
    }
}
