//! Services in a row: contexts go down, what gates say goes up.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::patient;
use tidegate_core::gate::{CalleeId, Gate};
use tidegate_core::{Criticality, Cursor, Feedback, Progress, Rank, Reason, Sheds, Workflow};
use tidegate_driver::context;
use tidegate_rpc::{
    CallError, Client, Failure, Parent, Request, RpcGate, Server, Upstream, asynchronous, blocking,
};

const LONG: Duration = Duration::from_secs(60);

fn client(server: &Server) -> Client {
    Client::builder().endpoint(server.address()).build().expect("valid")
}

/// Two services in a row: the second sees rank, workflow and deadline of the first's request, and its
/// feedback reaches the first's gate.
#[tokio::test]
async fn a_handlers_calls_inherit_its_context() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = blocking(move |request: Request| {
        noted.lock().expect("no panic").push(request.context);
        Ok(request.payload)
    });
    let back = Server::builder().gate(patient()).bind("127.0.0.1:0", handler).expect("binds");
    let onward = client(&back);
    let handler = asynchronous(move |request: Request| {
        let onward = onward.clone();
        async move {
            onward
                .call(7, request.payload)
                .await
                .map_err(|error| Failure::new(1, error.to_string()))
        }
    });
    let front = Server::builder().gate(patient()).bind("127.0.0.1:0", handler).expect("binds");
    let client = client(&front);
    let rank = Rank::new(Criticality::CriticalPlus as u8, 77);
    let call = client.request(1, "through").rank(rank).workflow("inherit").deadline(LONG);
    assert_eq!(call.send().await.expect("served"), "through");
    let seen = seen.lock().expect("no panic")[0];
    assert_eq!((seen.rank, seen.attempt), (rank, 0));
    assert_eq!(seen.workflow, tidegate_driver::Names::process().number("inherit"));
    assert!(seen.deadline < tidegate_core::Instant::FAR);
}

/// Who told, and which window.
type Told = (CalleeId, Option<u32>);

/// What a gate hears from a client behind it.
#[derive(Clone, Default)]
struct Heard {
    told: Arc<Mutex<Vec<Told>>>,
    shed: Arc<AtomicUsize>,
}

impl Upstream for Heard {
    fn on_call(&self, _: CalleeId, _: Workflow) -> Sheds {
        let count = self.shed.swap(0, Ordering::SeqCst) as u32;
        Sheds { count, sample: Rank::new(50, 1) }
    }

    fn progress(&self, _: &Parent) -> Option<Progress> {
        None
    }

    fn on_downstream(&self, callee: CalleeId, _: Workflow, _: Option<&Parent>, told: &Feedback) {
        self.told.lock().expect("no panic").push((callee, told.window));
    }
}

#[tokio::test]
async fn feedback_goes_up_the_path_and_sheds_come_down() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = blocking(move |request: Request| {
        noted.lock().expect("no panic").push(request.context.sheds);
        Ok(request.payload)
    });
    let back = Server::builder().gate(patient()).bind("127.0.0.1:0", handler).expect("binds");
    let gate = Heard { shed: Arc::new(AtomicUsize::new(5)), ..Heard::default() };
    let onward = Client::builder()
        .endpoint(back.address())
        .upstream(gate.clone(), CalleeId(3))
        .build()
        .expect("valid");
    onward.call(1, "x").await.expect("served");
    let told = gate.told.lock().expect("no panic").clone();
    assert!(matches!(told[..], [(CalleeId(3), Some(1..))]), "{told:?}");
    let sheds = seen.lock().expect("no panic").clone();
    assert_eq!(sheds, [Sheds { count: 5, sample: Rank::new(50, 1) }]);
}

/// The gate of a server, which notes how often it is told something.
struct Noted(RpcGate, Arc<AtomicUsize>);

impl Upstream for Noted {
    fn on_call(&self, callee: CalleeId, workflow: Workflow) -> Sheds {
        self.0.on_call(callee, workflow)
    }

    fn progress(&self, parent: &Parent) -> Option<Progress> {
        self.0.progress(parent)
    }

    fn on_downstream(
        &self,
        callee: CalleeId,
        workflow: Workflow,
        parent: Option<&Parent>,
        feedback: &Feedback,
    ) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.on_downstream(callee, workflow, parent, feedback);
    }
}

/// Two servers: the gate of the first hears what the second says, and refuses what would be refused
/// there.
#[tokio::test]
async fn a_gate_hears_from_the_servers_behind_its_handler() {
    let back = Server::builder()
        .gate(patient())
        .bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))
        .expect("binds");
    let onward = Client::builder().endpoint(back.address());
    let heard = Arc::new(AtomicUsize::new(0));
    let front = Server::builder().gate(patient()).bind_with("127.0.0.1:0", |gate| {
        let noted = Noted(gate, Arc::clone(&heard));
        let onward = onward.upstream(noted, CalleeId(1)).build().expect("valid");
        asynchronous(move |request: Request| {
            let onward = onward.clone();
            async move {
                let answer = onward.call(7, request.payload).await;
                answer.map_err(|error| Failure::new(1, error.to_string()))
            }
        })
    });
    let front = front.expect("binds");
    let client = client(&front);
    let rank = |business| client.request(1, "x").rank(Rank::new(business, 0)).deadline(LONG);
    assert_eq!(rank(20).send().await.expect("served"), "x");
    assert_eq!(heard.load(Ordering::SeqCst), 1, "told with the answer");
    // As the second would say if it let in the first ten levels only.
    let last = Some(Cursor::at(Rank::new(10, 0)));
    let said = Feedback { last, ..Feedback::silent(back.gate().read(Gate::id), 1 << 40) };
    front.gate().on_downstream(CalleeId(1), Workflow::NONE, None, &said);
    let refused = rank(20).send().await;
    assert!(
        matches!(&refused, Err(CallError::Refused(r)) if r.reason == Reason::Downstream),
        "{refused:?}"
    );
    assert_eq!(rank(5).send().await.expect("served"), "x");
}

/// Handlers of both kinds know whom they work for.
#[tokio::test]
async fn a_handler_has_a_parent() {
    let later = asynchronous(|_| async {
        tokio::task::yield_now().await;
        Ok(parent())
    });
    let now = blocking(|_| Ok(parent()));
    let later = Server::builder().gate(patient()).bind("127.0.0.1:0", later).expect("binds");
    let now = Server::builder().gate(patient()).bind("127.0.0.1:0", now).expect("binds");
    for server in [later, now] {
        let id = server.gate().read(Gate::id);
        assert_eq!(client(&server).call(1, "").await.expect("served"), format!("{id:?}"));
    }
}

fn parent() -> tidegate_rpc::Bytes {
    context::parent().map_or_else(String::new, |parent| format!("{:?}", parent.gate)).into()
}
