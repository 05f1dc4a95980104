//! Metadata of a GGUF file.

/// One value of the metadata.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text.
    Text(String),
    /// Integers of any width.
    Integers(Vec<i64>),
    /// f32 or f64 numbers.
    Floats(Vec<f64>),
    /// Truth values.
    Bools(Vec<bool>),
    /// Texts.
    Texts(Vec<String>),
}

impl Value {
    /// A non-negative integer.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(v) => Some(v),
            Value::Signed(v) => u64::try_from(v).ok(),
            _ => None,
        }
    }

    /// A number of any kind.
    #[allow(clippy::cast_precision_loss)]
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::Float(v) => Some(v),
            Value::Unsigned(v) => Some(v as f64),
            Value::Signed(v) => Some(v as f64),
            _ => None,
        }
    }

    /// A truth value.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// Text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(v) => Some(v),
            _ => None,
        }
    }

    /// A list of texts.
    pub fn as_texts(&self) -> Option<&[String]> {
        match self {
            Value::Texts(v) => Some(v),
            _ => None,
        }
    }

    /// A list of integers.
    pub fn as_integers(&self) -> Option<&[i64]> {
        match self {
            Value::Integers(v) => Some(v),
            _ => None,
        }
    }

    /// A list of floating-point numbers.
    pub fn as_floats(&self) -> Option<&[f64]> {
        match self {
            Value::Floats(v) => Some(v),
            _ => None,
        }
    }
}
