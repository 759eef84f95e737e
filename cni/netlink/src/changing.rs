// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lists of objects that come and go all the time.

use std::collections::BTreeMap;

use crate::reply::End;

/// The times that such a list is read, before what was found is united.
pub const ATTEMPTS: usize = 4;

/// Reads a long list of a kind of objects that come and go all the time, such as the links of a node with thousands of
/// containers.
///
/// The kernel sends a long list in parts, and marks it ([`End::Interrupted`]) if anything of the kind came or went in
/// between, in whichever part. On such a node each attempt is marked, so waiting for one that is not would never end. An
/// interrupted list misses at most an object next to one that went, where one part of the list ends: a different one each
/// time. So if all attempts were marked, the result is their union, with the latest state of each object. Like any list
/// a moment after it was read, it may have objects that are gone, and lack new ones.
///
/// `attempt` reads the list once, and adds each object together with a key that identifies it. Returns the objects with
/// the end of the last attempt: [`End::Interrupted`] if they are a union, which is in the order of the keys.
///
/// # Errors
/// The first error of `attempt`.
pub fn list<K: Ord, T, E>(
    mut attempt: impl FnMut(&mut Vec<(K, T)>) -> Result<End, E>,
) -> Result<(Vec<T>, End), E> {
    let mut united = BTreeMap::new();
    for _ in 0..ATTEMPTS {
        let mut found = Vec::new();
        let end = attempt(&mut found)?;
        if end != End::Interrupted {
            return Ok((found.into_iter().map(|(_, object)| object).collect(), end));
        }
        united.extend(found);
    }
    Ok((united.into_values().collect(), End::Interrupted))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Attempt = (Result<End, &'static str>, Vec<(u8, &'static str)>);

    fn read(attempts: &[Attempt]) -> (Result<(Vec<&'static str>, End), &'static str>, usize) {
        let mut done = 0;
        let outcome = list(|found| {
            let (end, objects) = &attempts[done];
            done += 1;
            found.extend(objects.iter().copied());
            *end
        });
        (outcome, done)
    }

    #[test]
    fn a_list_that_holds_still_is_taken_as_it_is() {
        let first = (Ok(End::Interrupted), vec![(1, "gone")]);
        let second = (Ok(End::Complete), vec![(7, "b"), (2, "a")]);
        assert_eq!(read(&[first, second]), (Ok((vec!["b", "a"], End::Complete)), 2));
    }

    #[test]
    fn lists_that_never_hold_still_are_united() {
        let attempts: Vec<Attempt> = [
            vec![(1, "down"), (3, "c")],
            vec![(1, "up"), (2, "b")],
            vec![(2, "b"), (3, "c")],
            vec![(3, "c")],
        ]
        .map(|objects| (Ok(End::Interrupted), objects))
        .into();
        assert_eq!(read(&attempts), (Ok((vec!["up", "b", "c"], End::Interrupted)), ATTEMPTS));
    }

    #[test]
    fn an_error_ends_the_attempts() {
        assert_eq!(read(&[(Ok(End::Interrupted), vec![]), (Err("refused"), vec![])]), (Err("refused"), 2));
    }
}
