// SPDX-License-Identifier: GPL-2.0-or-later

//! Expected state: the objects on the node that an attachment needs, as one list.
//!
//! Each plugin describes its part from the configuration and the result of the ADD. CHECK fails at the first object of the
//! list that is missing or different, `slipway restore` makes it again by the function that the ADD calls, and `slipway
//! check-node` and `explain` name it. All four say the same, because they read the same list.

use std::fmt;

use cni_kernel::AddressFamily;
use cni_spec::CniError;

/// An object that an attachment needs on the node.
pub trait Expected {
    /// The object and its place, for reports.
    fn name(&self) -> String;

    /// Who may make it again. CHECK asks each object, so the answer needs no look at the kernel.
    fn whose(&self) -> Whose {
        Whose::Ours
    }

    /// What helps where the object is missing or different, as it is now: a command that works when it is pasted, or a
    /// setting, and the program that may have changed it.
    fn remedy(&self) -> String {
        "`slipway restore`".to_owned()
    }

    /// True for rules, which a flush of the ruleset deletes.
    fn is_rules(&self) -> bool {
        false
    }

    /// True if packets of this family to or from the container do not pass while the object is missing or different. A
    /// packet of the node itself is not forwarded.
    fn stops(&self, _family: AddressFamily, _is_forwarded: bool) -> bool {
        false
    }

    /// True if packets pass while the object is missing or different, but not as configured, such as without a limit.
    fn alters(&self) -> bool {
        false
    }

    /// Compares the object with what the ADD made.
    ///
    /// # Errors
    /// The difference, with both values.
    fn check(&self) -> Result<(), CniError>;

    /// Makes the object as the ADD did, by the ADD's own function. Takes nothing from another living attachment. Not
    /// called for an object of [`Whose::Theirs`].
    ///
    /// # Errors
    /// The kernel's refusal, or a conflict with another attachment; the call can be repeated.
    fn put_back(&self) -> Result<(), CniError>;

    /// Removes the object again, if the container left while the object was put back. Leaves alone what a later ADD has
    /// made, and what containers share.
    ///
    /// # Errors
    /// The kernel refuses to delete the object; the call can be repeated.
    fn take_away(&self) -> Result<(), CniError> {
        Ok(())
    }
}

/// Who may make an object again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The ADD made it for this attachment or for its network: Slipway may make it again at any time.
    Ours,
    /// A setting of the whole node, which other programs set as well. It is repaired only where an ADD would set it, too.
    Shared,
    /// A setting that the node's administrator, the container, or a program of theirs has made on purpose. Slipway only
    /// names it, with [`Expected::remedy`].
    Theirs,
}

impl Whose {
    /// True if `slipway restore` may make the object again, and CHECK fails without it.
    #[must_use]
    pub const fn is_repaired(self) -> bool {
        matches!(self, Self::Ours | Self::Shared)
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "ours",
            Self::Shared => "shared",
            Self::Theirs => "theirs",
        })
    }
}

/// Compares all objects that Slipway repairs, as a part of CHECK.
///
/// # Errors
/// The first difference.
pub fn check(objects: &[Box<dyn Expected>]) -> Result<(), CniError> {
    objects.iter().filter(|object| object.whose().is_repaired()).try_for_each(|object| object.check())
}
