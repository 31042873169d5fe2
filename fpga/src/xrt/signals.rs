//! What the program does on signals, kept from what a library does to it.

/// What the program does on each signal, taken back when this goes.
///
/// XRT's software emulation takes several signals for itself when a bitstream is loaded. When a card's process dies, its handlers
/// end the program from whatever each thread was doing, which may wait for ever. With the program's own ways back in place, the
/// call to that card does not come back, and the card is given up as a real one would be. On real cards XRT takes no signals.
pub struct Kept {
    ways: Vec<(libc::c_int, libc::sigaction)>,
}

impl Kept {
    /// Notes all that can be set.
    pub fn new() -> Self {
        let way = |signal| {
            // SAFETY: all zeros is a value of the structure.
            let mut way: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: only reads; the structure has room for the answer.
            let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut way) } == 0;
            known.then_some((signal, way))
        };
        let fixed = [libc::SIGKILL, libc::SIGSTOP];
        let ways = (1..32).filter(|signal| !fixed.contains(signal)).filter_map(way).collect();
        Self { ways }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (signal, way) in &self.ways {
            // SAFETY: puts back what the program had before.
            unsafe { libc::sigaction(*signal, way, std::ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn other(_: libc::c_int) {}

    #[test]
    fn a_handler_that_came_meanwhile_goes() {
        let handler = || {
            // SAFETY: as above.
            let mut way: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: as above.
            unsafe { libc::sigaction(libc::SIGURG, std::ptr::null(), &raw mut way) };
            way.sa_sigaction
        };
        let before = handler();
        let kept = Kept::new();
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGURG, other as *const () as libc::sighandler_t) };
        assert_ne!(handler(), before);
        drop(kept);
        assert_eq!(handler(), before);
    }
}
