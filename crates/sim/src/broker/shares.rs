//! Nodes under a shared limit.
