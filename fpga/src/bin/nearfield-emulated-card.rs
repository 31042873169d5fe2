//! An emulated card: XRT's software emulation starts it, one process for each card.

fn main() {
    // SAFETY: closes what the host has open besides the standard streams, such as sockets of other cards; this program has opened
    // nothing yet.
    unsafe { libc::close_range(3, u32::MAX, 0) };
    std::panic::set_hook(Box::new(|info| {
        eprintln!("emulated card: {info}");
        std::process::abort();
    }));
    // XRT takes the end of this process by a signal as what it is; after an ordinary end it would wait for ever.
    if let Err(error) = nearfield_fpga::card::serve() {
        eprintln!("emulated card: {error}");
        std::process::abort();
    }
}
