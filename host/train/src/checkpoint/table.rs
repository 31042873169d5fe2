//! The table of tensors at the start of a safetensors file.

use std::collections::HashMap;

use nearfield_runtime::types::DType;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo as Entry};

use crate::error::{Error, Result};

/// A table that grows tensor by tensor; the data of each follows that of the one before.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: Vec<(String, Entry)>,
    end: usize,
}

impl Table {
    /// Adds a tensor.
    pub fn add(&mut self, name: String, shape: &[u64], dtype: DType) {
        let start = self.end;
        let shape: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
        self.end += shape.iter().product::<usize>() * dtype.bytes() as usize;
        let entry = Entry { dtype: stored(dtype), shape, data_offsets: (start, self.end) };
        self.entries.push((name, entry));
    }

    /// Bytes of the data of all tensors.
    pub fn data_bytes(&self) -> u64 {
        self.end as u64
    }

    /// Where the data of each tensor begins, in bytes from the end of the head.
    pub fn starts(&self) -> Vec<u64> {
        self.entries.iter().map(|(_, entry)| entry.data_offsets.0 as u64).collect()
    }

    /// What comes before the data: the length of the table, and the table.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a table that the format does not allow, which is a defect.
    pub fn head(self) -> Result<Vec<u8>> {
        let defect = |error: &dyn std::fmt::Display| {
            Error::Invalid(format!("a table of tensors: {error}; this is a defect of the program"))
        };
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let metadata = Metadata::new(Some(format), self.entries).map_err(|error| defect(&error))?;
        let mut table = serde_json::to_vec(&metadata).map_err(|error| defect(&error))?;
        table.resize(table.len().next_multiple_of(8), b' ');
        let mut head = (table.len() as u64).to_le_bytes().to_vec();
        head.extend(table);
        Ok(head)
    }
}

/// safetensors' name of a format.
const fn stored(dtype: DType) -> Dtype {
    match dtype {
        DType::Fp32 => Dtype::F32,
        DType::Fp16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
    }
}
