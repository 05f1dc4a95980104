//! Mixtures of experts: tokens to their experts and back.

mod combine;
mod sort;

pub use combine::CombineExperts;
pub use sort::SortByExpert;
