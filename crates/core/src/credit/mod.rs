//! Credits, each the right to have one request outstanding: how many there are (`pool.rs`) and who
//! has them (`windows.rs`). Shared by `breakwater` and `tide`.

mod pool;
mod windows;

pub(crate) use pool::Pool;
pub use pool::{PoolConfig, PoolForm};
pub(crate) use windows::{Share, Windows};
