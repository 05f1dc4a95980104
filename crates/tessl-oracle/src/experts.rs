//! Rows of tokens by expert, and back.

/// Choices of tokens in the order of their experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByExpert {
    /// Where the choices of each expert begin, and where those of the last one end.
    pub offsets: Vec<usize>,
    /// The token of each place.
    pub tokens: Vec<usize>,
    /// The place of each choice; `None` for an expert that there is not.
    pub places: Vec<Option<usize>>,
}

/// Sorts the choices of tokens, `each` a token, by expert; choices of one expert keep their order.
pub fn by_expert(chosen: &[i64], each: usize, experts: usize) -> ByExpert {
    let (mut offsets, mut tokens) = (vec![0], Vec::new());
    let mut places = vec![None; chosen.len()];
    for expert in 0..experts {
        for (choice, _) in chosen.iter().enumerate().filter(|(_, e)| usize::try_from(**e) == Ok(expert)) {
            places[choice] = Some(tokens.len());
            tokens.push(choice / each);
        }
        offsets.push(tokens.len());
    }
    ByExpert { offsets, tokens, places }
}

/// `old + sum_j weights[j] rows[places[j]]` for one token: rows of `n` elements, `old` being zero where there is none.
pub fn combine(rows: &[f64], n: usize, places: &[usize], weights: &[f64], old: Option<&[f64]>) -> Vec<f64> {
    let term = |i: usize| places.iter().zip(weights).map(|(p, w)| w * rows[p * n + i]).sum::<f64>();
    (0..n).map(|i| old.map_or(0.0, |old| old[i]) + term(i)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_worked() {
        let sorted = by_expert(&[2, 0, 0, 2, -1, 3, 2, 0], 2, 3);
        assert_eq!(sorted.offsets, [0, 3, 3, 6]);
        assert_eq!(sorted.tokens, [0, 1, 3, 0, 1, 3]);
        let place = |p: usize| Some(p);
        assert_eq!(sorted.places, [place(3), place(0), place(1), place(4), None, None, place(5), place(2)]);
        assert_eq!(combine(&[1.0, 2.0, 10.0, 20.0], 2, &[1, 0], &[0.5, 2.0], None), [7.0, 14.0]);
        assert_eq!(combine(&[1.0, 2.0], 2, &[0], &[-1.0], Some(&[5.0, 5.0])), [4.0, 3.0]);
    }
}
