//! Credits: how many there are ([`Pool`]) and who has them ([`Windows`]). Shared by `breakwater` and
//! `tide`.

mod pool;
mod windows;

pub(crate) use pool::Pool;
pub use pool::{PoolConfig, PoolForm};
pub(crate) use windows::{Share, Windows};
