//! Embedding lookup.

/// Row `id` of a table of rows of `n` elements, times `scale`; `None` outside of it.
pub fn embedding(table: &[f64], n: usize, id: i64, scale: f64) -> Option<Vec<f64>> {
    let row = table.chunks(n).nth(usize::try_from(id).ok()?)?;
    Some(row.iter().map(|x| x * scale).collect())
}

#[cfg(test)]
mod tests {
    use super::embedding;

    #[test]
    fn hand_worked() {
        let table = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(embedding(&table, 2, 1, 10.0), Some(vec![30.0, 40.0]));
        assert_eq!((embedding(&table, 2, 2, 1.0), embedding(&table, 2, -1, 1.0)), (None, None));
    }
}
