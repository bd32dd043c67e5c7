//! A shop over gRPC: the service, without its gate.

use std::pin::Pin;
use std::time::Duration;

use tonic::codegen::tokio_stream::{self, Stream};
use tonic::{Request, Response, Status};

use shop::shop_server::Shop;
use shop::{OrderReply, OrderRequest};

/// Made from `proto/shop.proto` with protox; `tests/generated.rs` makes it again and compares.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "not written by hand")]
pub mod shop {
    include!("generated/shop.v1.rs");
}

/// A shop that takes its time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slow {
    /// How long an order takes.
    pub takes: Duration,
}

#[tonic::async_trait]
impl Shop for Slow {
    async fn order(&self, request: Request<OrderRequest>) -> Result<Response<OrderReply>, Status> {
        tokio::time::sleep(self.takes).await;
        Ok(Response::new(OrderReply { state: format!("{} sold", request.into_inner().item) }))
    }

    type FollowStream = Pin<Box<dyn Stream<Item = Result<OrderReply, Status>> + Send>>;

    async fn follow(
        &self,
        _request: Request<OrderRequest>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let states = ["paid", "packed", "sent"];
        let replies = states.map(|state| Ok(OrderReply { state: state.to_owned() }));
        Ok(Response::new(Box::pin(tokio_stream::iter(replies))))
    }
}
