//! Which tokens see which, where that is not every earlier one: windows of attention, and documents that share a sequence.

use tch::{Device, Kind, TchError, Tensor};

type Result<T> = std::result::Result<T, TchError>;

/// Documents within the sequences of a micro-batch. Tokens see only their own.
#[derive(Debug)]
pub struct Documents {
    /// Number of each token's document, `[batch, tokens]` of i64.
    numbers: Tensor,
    /// Place of each token in its document, `[batch, tokens]` of i64.
    pub(super) positions: Tensor,
}

impl Documents {
    /// From the number of each token's document, row-major, in `[batch, tokens]` sequences on `device`. Tokens of a document are adjacent.
    pub(super) fn new(numbers: &[i64], length: usize, device: Device) -> Result<Self> {
        let mut positions = Vec::with_capacity(numbers.len());
        for row in numbers.chunks(length.max(1)) {
            let mut start = 0;
            for (at, number) in row.iter().enumerate() {
                if at > 0 && *number != row[at - 1] {
                    start = at;
                }
                positions.push((at - start) as i64);
            }
        }
        let tensor = |values: &[i64]| {
            Tensor::f_from_slice(values)?.f_view([-1, length as i64])?.f_to(device)
        };
        Ok(Self { numbers: tensor(numbers)?, positions: tensor(&positions)? })
    }

    pub(super) fn shallow_clone(&self) -> Self {
        Self { numbers: self.numbers.shallow_clone(), positions: self.positions.shallow_clone() }
    }
}

/// Whether token i sees token j, `[1 or batch, 1, tokens, tokens]`; `None` when it sees every j <= i.
pub(super) fn mask(
    length: i64,
    window: Option<u32>,
    documents: Option<&Documents>,
    device: Device,
) -> Result<Option<Tensor>> {
    let window = window.map(i64::from).filter(|&window| window < length);
    if window.is_none() && documents.is_none() {
        return Ok(None);
    }
    let _guard = tch::no_grad_guard();
    let mut seen = Tensor::f_ones([1, 1, length, length], (Kind::Bool, device))?.f_tril(0)?;
    if let Some(window) = window {
        seen = seen.f_triu(1 - window)?;
    }
    if let Some(Documents { numbers, .. }) = documents {
        let same = numbers.f_unsqueeze(2)?.f_eq_tensor(&numbers.f_unsqueeze(1)?)?;
        seen = seen.f_logical_and(&same.f_unsqueeze(1)?)?;
    }
    Ok(Some(seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(mask: &Tensor) -> Vec<String> {
        let size = mask.size();
        let cells: Vec<bool> = mask.view([-1]).try_into().unwrap();
        let show = |row: &[bool]| row.iter().map(|&seen| if seen { 'x' } else { '.' }).collect();
        cells.chunks(size[3] as usize).map(show).collect()
    }

    #[test]
    fn windows_and_documents_hide_what_lies_before() {
        let device = Device::Cpu;
        assert!(mask(4, None, None, device).unwrap().is_none());
        assert!(mask(4, Some(4), None, device).unwrap().is_none());
        let window = mask(4, Some(2), None, device).unwrap().unwrap();
        assert_eq!(rows(&window), ["x...", "xx..", ".xx.", "..xx"]);
        let documents = Documents::new(&[0, 0, 1, 1], 4, device).unwrap();
        let both = mask(4, None, Some(&documents), device).unwrap().unwrap();
        assert_eq!(rows(&both), ["x...", "xx..", "..x.", "..xx"]);
    }

    #[test]
    fn positions_begin_anew_with_each_document_and_row() {
        let documents = Documents::new(&[0, 0, 1, 2, 2, 2], 3, Device::Cpu).unwrap();
        let positions: Vec<i64> = documents.positions.view([-1]).try_into().unwrap();
        assert_eq!(positions, [0, 1, 0, 0, 1, 2]);
    }
}
