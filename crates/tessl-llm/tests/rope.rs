//! Factors of rotary frequencies in files of Llama 3.

mod gguf;
mod session;
mod tiny;

use tessl_llm::Session;
use tiny::{LLAMA, Stretch, Tiny};

#[test]
fn equal_factors_are_a_linear_scaling() {
    let logits = |stretch: Stretch| {
        let model = session::model(Tiny { stretch, ..LLAMA }, 1);
        let mut session = Session::new(&model, 64).unwrap();
        session.extend(&[3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9]).unwrap();
        session.logits().unwrap()
    };
    let (plain, linear, factors) = (logits(Stretch::None), logits(Stretch::Linear(4.0)), logits(Stretch::Factors(4.0)));
    assert_eq!(linear, factors);
    assert_ne!(plain, factors);
}
