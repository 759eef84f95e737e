//! The parts of the table that not every node has.

use crate::PortRange;

/// What the table has beside its maps and what leads to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// What goes by the flowtable; none: everything goes through all chains.
    pub(crate) offloading: Option<Protocols>,
    /// The ports that masquerade leaves to the BPF programs.
    pub(crate) spared: Option<PortRange>,
    /// True if published ports answer at the addresses in the table's sets alone, of all that are local.
    pub(crate) addresses: bool,
}

/// The protocols that are offloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocols {
    /// TCP alone: where a flow that is offloaded cannot be cut, UDP clients would go on sending to a
    /// container that is gone.
    Tcp,
    /// Both.
    TcpAndUdp,
}

impl Protocols {
    /// What a kernel can do: since Linux 6.4, ctnetlink deletes flows that are offloaded
    /// (`ctnetlink_del_conntrack`).
    pub(crate) fn of(kernel: Kernel) -> Self {
        if kernel >= Kernel(6, 4) { Self::TcpAndUdp } else { Self::Tcp }
    }
}

/// Major and minor number of a kernel's release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kernel(pub(crate) u32, pub(crate) u32);

impl Kernel {
    pub(crate) fn this() -> Self {
        let release = nix::sys::utsname::uname().map(|names| names.release().to_string_lossy().into_owned());
        Self::of_release(&release.unwrap_or_default())
    }

    /// 0.0 if it is none.
    pub(crate) fn of_release(release: &str) -> Self {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse::<u32>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => Self(major, minor),
            _ => Self(0, 0),
        }
    }

    /// True if a flowtable can count (`NFT_FLOWTABLE_COUNTER`, Linux 5.7).
    pub(crate) fn counts(self) -> bool {
        self >= Self(5, 7)
    }

    /// True if a flowtable that is there takes the flag: Linux 5.12. Before, the kernel ignores it without an error.
    pub(crate) fn begins_to_count(self) -> bool {
        self >= Self(5, 12)
    }

    /// Whether it looks through bridges, and takes no flow in whose container's link is not in the flowtable:
    /// 7.2 does, 6.18 does not. From 6.17 on all links can be told of by the beginning of their names
    /// (`NFTA_DEVICE_PREFIX`); only newer versions of nft can read that, so it is not said where it need not be.
    pub(crate) fn looks_through_bridges(self) -> bool {
        self >= Self(7, 0)
    }
}

impl Layout {
    /// None of these.
    pub(crate) const PLAIN: Self = Self { offloading: None, spared: None, addresses: false };

    /// This with a flowtable, as this kernel can have it.
    pub(crate) fn offloading(self) -> Self {
        Self { offloading: Some(Protocols::of(Kernel::this())), ..self }
    }
}
