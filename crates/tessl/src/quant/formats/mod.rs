//! One file a format: where the bits of a weight lie, and how they were chosen.

mod affine;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8;
mod q8_0;
mod scales;
mod signed4;

pub(crate) use affine::{Affine4, Affine8};
pub(crate) use q4_0::Q4_0;
pub(crate) use q4_1::Q4_1;
pub(crate) use q4_k::Q4K;
pub(crate) use q5_0::Q5_0;
pub(crate) use q5_1::Q5_1;
pub(crate) use q5_k::Q5K;
pub(crate) use q6_k::Q6K;
pub(crate) use q8::Q8;
pub(crate) use q8_0::Q8_0;
pub(crate) use scales::f16_to_f32;
pub(crate) use signed4::Signed4;

#[cfg(test)]
mod tests;
