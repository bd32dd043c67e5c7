//! A limit over two processes that use the layer: leased by a daemon, decided locally, over real sockets.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Client, Function, get, serve};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tidegate_control::{Daemon, File, Link};
use tidegate_core::gate::GateConfig;
use tidegate_driver::{Names, SharedGate};
use tidegate_http::GateLayer;
use tower_layer::Layer;
use tower_service::Service;

async fn answer<B>(_: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("ok")))
}

/// The state of a daemon, gone at the end.
struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn two_layers_keep_one_agreement() {
    let folder =
        Folder(std::env::temp_dir().join(format!("tidegate-leased-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).expect("a folder of its own");
    let file = format!(
        "[control]\nlisten = '127.0.0.1:0'\nadmin = '127.0.0.1:0'\nstore = 'file:{}'\n\
         [[agreements]]\nname = 'api'\nrate = 50.0\nburst = 10.0\nnodes = 2\n",
        folder.0.join("state.json").display()
    );
    let file = File::parse(&file).unwrap_or_else(|error| panic!("{error}"));
    let daemon = tokio::task::spawn_blocking(move || Daemon::bind(&file, None).expect("it binds"));
    let daemon = daemon.await.expect("it binds").silent();
    let handle = daemon.handle();
    let thread = std::thread::spawn(move || daemon.run());
    let config = format!(
        "limits = [{{ limit = 'leased', agreement = 'api', control = 'http://{}' }}]\n\
         [admission]\npolicy = 'open'\n",
        handle.listen()
    );
    let config = GateConfig::from_toml(&config).unwrap_or_else(|error| panic!("{error}"));
    let begun = Instant::now();
    let (mut clients, mut links) = (Vec::new(), Vec::new());
    for node in ["a", "b"] {
        let gate = SharedGate::build(&config).expect("valid");
        let link = Link::of_gate(&gate, &Names::default(), node);
        tokio::spawn(link.clone().run(|_| {}));
        links.push(link);
        clients.push(Client(serve(GateLayer::new(gate).layer(Function(answer))).await));
    }
    // Both pass some, and all together as much as there is in three seconds.
    let mut passed = [0u32; 2];
    let end = begun + Duration::from_secs(60);
    while passed[0] < 20 || passed[1] < 20 || passed[0] + passed[1] < 150 {
        for (client, passed) in clients.iter_mut().zip(&mut passed) {
            let status = client.call(get("/")).await.expect("an answer").status();
            assert!(matches!(status, StatusCode::OK | StatusCode::TOO_MANY_REQUESTS), "{status}");
            *passed += u32::from(status == StatusCode::OK);
        }
        assert!(Instant::now() < end, "waited in vain: {passed:?}");
    }
    let most = 10.0 + 50.0 * 1.0011 * begun.elapsed().as_secs_f64();
    assert!(f64::from(passed[0] + passed[1]) <= most, "{passed:?} of {most}");
    for link in &links {
        assert!(link.health().connected);
        link.leave().await;
    }
    handle.stop();
    thread.join().expect("it ends").expect("in order");
}
