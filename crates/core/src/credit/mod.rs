//! Credits, each the right to have one request outstanding: how many there are (`pool.rs`) and who
//! has them (`windows.rs`, `index.rs`). Shared by `breakwater` and `tide`.

mod index;
mod pool;
mod windows;

pub(crate) use pool::Pool;
pub use pool::{PoolConfig, PoolForm};
pub(crate) use windows::{Holder, Share, Windows};
