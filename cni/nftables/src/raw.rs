// SPDX-License-Identifier: GPL-2.0-or-later

//! Owned libnftnl objects.
//!
//! The `nftnl` crate's objects lack userdata, maps and element data, and hide their pointers. These objects accept
//! every attribute of libnftnl. Setters copy their values, so nothing here borrows anything.
#![allow(unsafe_code, reason = "every function of libnftnl is a foreign function")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use nftnl::nftnl_sys as sys;

/// An attribute number in the type of libnftnl's setters: 16 bits, although numbers only go up to a few dozen.
#[allow(clippy::cast_possible_truncation, reason = "the largest attribute number is 18")]
pub(crate) const fn attr(number: u32) -> u16 {
    number as u16
}

/// Checks an allocation. If there is no memory for some hundred bytes, neither continuing nor reporting is possible,
/// so the process aborts, like libstd does.
fn allocated<T>(object: *mut T) -> NonNull<T> {
    NonNull::new(object).unwrap_or_else(|| std::process::abort())
}

/// A length in libnftnl's type. No caller has more data than the 64 KB of a netlink attribute.
fn length(data: &[u8]) -> u32 {
    u32::try_from(data.len()).unwrap_or(u32::MAX)
}

macro_rules! object {
    ($(#[$doc:meta])* $name:ident: $raw:ident, $alloc:ident, $free:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name(NonNull<sys::$raw>);

        impl $name {
            pub(crate) fn new() -> Self {
                // SAFETY: allocates zeroed memory, takes nothing.
                Self(allocated(unsafe { sys::$alloc() }))
            }

            #[allow(dead_code, reason = "expressions and elements are handed over to their owner")]
            pub(crate) const fn as_ptr(&self) -> *mut sys::$raw {
                self.0.as_ptr()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the object came from its allocator, and is freed only here: objects that were
                // handed over to an owner are forgotten.
                unsafe { sys::$free(self.0.as_ptr()) }
            }
        }
    };
}

macro_rules! setters {
    ($name:ident: $u32:ident, $text:ident, $data:ident) => {
        #[allow(dead_code, reason = "not every kind of object has every kind of attribute")]
        impl $name {
            pub(crate) fn u32(&mut self, number: u32, value: u32) -> &mut Self {
                // SAFETY: the object is alive, and the attribute has four bytes.
                unsafe { sys::$u32(self.0.as_ptr(), attr(number), value) };
                self
            }

            pub(crate) fn text(&mut self, number: u32, value: &CStr) -> &mut Self {
                // SAFETY: the object is alive and the string ends with a NUL; it is copied.
                if unsafe { sys::$text(self.0.as_ptr(), attr(number), value.as_ptr()) } < 0 {
                    std::process::abort();
                }
                self
            }

            pub(crate) fn data(&mut self, number: u32, value: &[u8]) -> &mut Self {
                let start = value.as_ptr().cast::<c_void>();
                // SAFETY: the object is alive; start and length are the slice's own; it is copied.
                if unsafe { sys::$data(self.0.as_ptr(), attr(number), start, length(value)) } < 0 {
                    std::process::abort();
                }
                self
            }
        }
    };
}

object! {
    Table: nftnl_table, nftnl_table_alloc, nftnl_table_free
}
setters!(Table: nftnl_table_set_u32, nftnl_table_set_str, nftnl_table_set_data);

object! {
    Chain: nftnl_chain, nftnl_chain_alloc, nftnl_chain_free
}
setters!(Chain: nftnl_chain_set_u32, nftnl_chain_set_str, nftnl_chain_set_data);

object! {
    Rule: nftnl_rule, nftnl_rule_alloc, nftnl_rule_free
}
setters!(Rule: nftnl_rule_set_u32, nftnl_rule_set_str, nftnl_rule_set_data);

impl Rule {
    pub(crate) fn u64(&mut self, number: u32, value: u64) -> &mut Self {
        // SAFETY: the object is alive, and the attribute has eight bytes.
        unsafe { sys::nftnl_rule_set_u64(self.0.as_ptr(), attr(number), value) };
        self
    }

    /// Appends an expression, which then belongs to the rule.
    pub(crate) fn push(&mut self, expr: NonNull<sys::nftnl_expr>) -> &mut Self {
        // SAFETY: both are alive; the caller has given up the expression.
        unsafe { sys::nftnl_rule_add_expr(self.0.as_ptr(), expr.as_ptr()) };
        self
    }
}

object! {
    /// A set, or the elements to add to or delete from one.
    Set: nftnl_set, nftnl_set_alloc, nftnl_set_free
}
setters!(Set: nftnl_set_set_u32, nftnl_set_set_str, nftnl_set_set_data);

impl Set {
    /// Appends an element, which then belongs to the set.
    pub(crate) fn push(&mut self, element: SetElement) -> &mut Self {
        // SAFETY: both are alive; the element is forgotten, so only the set frees it.
        unsafe { sys::nftnl_set_elem_add(self.0.as_ptr(), element.0.as_ptr()) };
        std::mem::forget(element);
        self
    }
}

object! {
    /// A set's element.
    SetElement: nftnl_set_elem, nftnl_set_elem_alloc, nftnl_set_elem_free
}
setters!(SetElement: nftnl_set_elem_set_u32, nftnl_set_elem_set_str, nftnl_set_elem_set);

impl SetElement {
    pub(crate) fn u64(&mut self, number: u32, value: u64) -> &mut Self {
        // SAFETY: the object is alive, and the attribute has eight bytes.
        unsafe { sys::nftnl_set_elem_set_u64(self.0.as_ptr(), attr(number), value) };
        self
    }
}

object! {
    Flowtable: nftnl_flowtable, nftnl_flowtable_alloc, nftnl_flowtable_free
}

impl Flowtable {
    pub(crate) fn text(&mut self, number: u32, value: &CStr) -> &mut Self {
        // SAFETY: the object is alive and the string ends with a NUL; it is copied.
        if unsafe { sys::nftnl_flowtable_set_str(self.0.as_ptr(), attr(number), value.as_ptr()) } < 0 {
            std::process::abort();
        }
        self
    }
}

/// An expression that belongs to no rule yet.
#[derive(Debug)]
pub(crate) struct Expression(NonNull<sys::nftnl_expr>);
setters!(Expression: nftnl_expr_set_u32, nftnl_expr_set_str, nftnl_expr_set);

impl Expression {
    /// An expression with this name in the kernel. libnftnl knows all names of [`crate::lower::Expr`].
    pub(crate) fn new(name: &CStr) -> Self {
        // SAFETY: the name ends with a NUL.
        Self(allocated(unsafe { sys::nftnl_expr_alloc(name.as_ptr()) }))
    }

    pub(crate) fn u64(&mut self, number: u32, value: u64) -> &mut Self {
        // SAFETY: the object is alive, and the attribute has eight bytes.
        unsafe { sys::nftnl_expr_set_u64(self.0.as_ptr(), attr(number), value) };
        self
    }

    /// Hands the expression over to an owner.
    pub(crate) fn into_raw(self) -> NonNull<sys::nftnl_expr> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }
}

impl Drop for Expression {
    fn drop(&mut self) {
        // SAFETY: it came from its allocator and was not handed over.
        unsafe { sys::nftnl_expr_free(self.0.as_ptr()) }
    }
}
