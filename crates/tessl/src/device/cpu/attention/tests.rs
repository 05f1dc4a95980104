//! Sums with a sink.

use super::inverse;

#[test]
fn a_sink_takes_part_in_the_sum_alone() {
    assert_eq!(inverse(None, 3.0, 4.0), 0.25);
    assert_eq!(inverse(Some(3.0), 3.0, 1.0), 0.5);
    assert_eq!(inverse(Some(f32::NEG_INFINITY), 3.0, 2.0), 0.5);
    assert_eq!(inverse(Some(200.0), 0.0, 1.0), 0.0, "as small as f32 can tell");
    let (small, large) = (inverse(Some(-1.0), 1.0, 1.5), inverse(Some(1.0), -1.0, 1.5));
    assert!((small - 1.0 / (1.5 + (-2f32).exp())).abs() < 1e-7);
    assert!((large - (-2f32).exp() / (1.5 * (-2f32).exp() + 1.0)).abs() < 1e-7);
    assert_eq!((inverse(None, f32::NEG_INFINITY, 0.0), inverse(Some(7.0), f32::NEG_INFINITY, 0.0)), (0.0, 0.0));
    assert!(inverse(Some(f32::NAN), 0.0, 1.0).is_nan() && inverse(Some(1.0), f32::NAN, f32::NAN).is_nan());
}
