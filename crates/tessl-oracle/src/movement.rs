//! Moving rows.

/// Rows `ids` of `x`, rows of `n` elements; `None` for an id outside of it.
pub fn gather_rows(x: &[f64], n: usize, ids: &[i64]) -> Vec<Option<Vec<f64>>> {
    ids.iter().map(|&id| Some(x.chunks(n).nth(usize::try_from(id).ok()?)?.to_vec())).collect()
}

/// Takes the rows of `x` to the rows `ids` of `y`, one after the other: written, or added up. Ids outside of y do nothing.
pub fn scatter_rows(x: &[f64], n: usize, ids: &[i64], y: &mut [f64], add: bool) {
    for (row, &id) in x.chunks(n).zip(ids) {
        let Some(target) = usize::try_from(id).ok().and_then(|id| y.chunks_mut(n).nth(id)) else { continue };
        target.iter_mut().zip(row).for_each(|(y, x)| *y = if add { *y + x } else { *x });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_worked() {
        let x = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(gather_rows(&x, 2, &[1, -1, 2]), [Some(vec![3.0, 4.0]), None, None]);
        let mut y = [10.0; 4];
        scatter_rows(&x, 2, &[1, 1], &mut y, true);
        assert_eq!(y, [10.0, 10.0, 14.0, 16.0]);
        scatter_rows(&x, 2, &[0, 7], &mut y, false);
        assert_eq!(y, [1.0, 2.0, 14.0, 16.0]);
    }
}
