//! What to fetch at once: few requests, each of bounded size, with little in them that nobody asked for.

use std::ops::Range;

/// Bytes that one request fetches at most.
pub const WINDOW: u64 = 8 << 20;

/// Bytes between two wanted ranges that are rather fetched in vain than asked around with another request.
const GAP: u64 = 128 << 10;

/// A fetch for several neighbours: a part of the list, and the range of the object that holds them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which of the ranges it is for.
    pub items: Range<usize>,
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Groups ranges (offset and length in bytes) that stand next to each other in the list, without changing its order.
///
/// A group covers at most [`WINDOW`] bytes and is at least half made of what is wanted, short gaps aside. A longer range
/// is a group of its own, to be fetched in pieces.
pub fn spans(ranges: &[(u64, u64)]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut wanted = 0_u64;
    for (n, (offset, len)) in ranges.iter().copied().enumerate() {
        if let Some(last) = spans.last_mut() {
            let start = last.offset.min(offset);
            let end = (last.offset + last.len).max(offset.saturating_add(len));
            let sum = wanted.saturating_add(len);
            let gaps = (n + 1 - last.items.start) as u64 * GAP;
            if end - start <= WINDOW && end - start <= (2 * sum).max(sum + gaps) {
                (last.offset, last.len, last.items.end) = (start, end - start, n + 1);
                wanted = sum;
                continue;
            }
        }
        spans.push(Span { items: n..n + 1, offset, len });
        wanted = len;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const M: u64 = 1 << 20;

    #[test]
    fn neighbours_are_fetched_together() {
        type Case<'a> = (&'a [(u64, u64)], &'a [usize]);
        let table: &[Case<'_>] = &[
            (&[], &[]),
            (&[(0, 10)], &[1]),
            // In whatever order they stand in the source.
            (&[(0, 10), (10, 10), (20, 10)], &[3]),
            (&[(20, 10), (0, 10), (10, 10)], &[3]),
            // A short gap is fetched, a long one is not.
            (&[(0, 10), (1000, 10)], &[2]),
            (&[(0, 10), (5 * M, 10)], &[1, 1]),
            (&[(0, 2 * M), (3 * M, M)], &[2]),
            // No more than a window.
            (&[(0, 5 * M), (5 * M, 3 * M), (8 * M, M)], &[2, 1]),
            (&[(0, 20 * M), (20 * M, 10), (20 * M + 10, 10)], &[1, 2]),
            // What reaches over its neighbour.
            (&[(0, 70_000), (100, 70_000)], &[2]),
        ];
        for (ranges, groups) in table {
            let got: Vec<usize> = spans(ranges).iter().map(|span| span.items.len()).collect();
            assert_eq!(got, *groups, "{ranges:?}");
        }
    }

    proptest! {
        #[test]
        fn every_range_is_in_its_span(ranges in prop::collection::vec((0..100 * M, 0..10 * M), 0..50)) {
            let spans = spans(&ranges);
            let covered: Vec<usize> = spans.iter().flat_map(|span| span.items.clone()).collect();
            prop_assert_eq!(covered, (0..ranges.len()).collect::<Vec<_>>());
            for span in &spans {
                for (offset, len) in &ranges[span.items.clone()] {
                    prop_assert!(span.offset <= *offset && offset + len <= span.offset + span.len);
                }
                prop_assert!(span.len <= WINDOW || span.items.len() == 1);
            }
        }
    }
}
