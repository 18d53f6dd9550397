//! How many requests at a time, and how long to wait after a refusal.

/// The most steps in flight. Cloud Control publishes no rate; a handful of mutations a second is what others settled
/// on (`LIMITS`: about 5/s for mutations).
const MOST: usize = 12;
const LEAST: usize = 1;

/// Additive increase, multiplicative decrease: halves when AWS asks for fewer calls, grows by one with every
/// `current` successes.
#[derive(Clone, Debug)]
pub struct Limiter {
    current: usize,
    successes: usize,
}

impl Default for Limiter {
    fn default() -> Self {
        Self { current: MOST, successes: 0 }
    }
}

impl Limiter {
    /// How many may be in flight now.
    pub fn limit(&self) -> usize {
        self.current
    }

    pub fn succeeded(&mut self) {
        self.successes += 1;
        if self.successes >= self.current {
            self.successes = 0;
            self.current = (self.current + 1).min(MOST);
        }
    }

    pub fn throttled(&mut self) {
        self.successes = 0;
        self.current = (self.current / 2).max(LEAST);
    }
}

/// How long to wait before the next try, milliseconds: doubles from half a second up to 20 (P7). The edge adds jitter.
pub fn backoff(attempt: u32) -> u64 {
    500_u64.saturating_mul(1 << attempt.min(10)).min(20_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p7_throttling_halves_and_success_grows_by_one() {
        let mut limiter = Limiter::default();
        assert_eq!(limiter.limit(), 12);
        limiter.throttled();
        limiter.throttled();
        assert_eq!(limiter.limit(), 3);
        for _ in 0..3 {
            limiter.succeeded();
        }
        assert_eq!(limiter.limit(), 4);
        for _ in 0..10 {
            limiter.throttled();
        }
        assert_eq!(limiter.limit(), 1);
        for _ in 0..1000 {
            limiter.succeeded();
        }
        assert_eq!(limiter.limit(), 12);
    }

    #[test]
    fn p7_backing_off_is_bounded() {
        let waits: Vec<u64> = (0..8).map(backoff).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 20_000, 20_000]);
        assert_eq!(backoff(u32::MAX), 20_000);
    }
}
