//! Credits, each the right to have one request outstanding: how many there are (`pool.rs`) and who
//! has them (`windows.rs`, with `holder.rs`, one of them, and `index.rs`, where it is). Shared by `breakwater` and `tide`.

mod holder;
mod index;
mod pool;
mod windows;

pub(crate) use holder::{Holder, Word};
pub(crate) use index::Index;
pub(crate) use pool::Pool;
pub use pool::{PoolConfig, PoolForm};
pub(crate) use windows::{Share, Windows};
