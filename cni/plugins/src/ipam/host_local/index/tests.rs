// SPDX-License-Identifier: GPL-2.0-or-later

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const STAMP: Stamp = Stamp { boot: [7; 16], device: 1, inode: 2, mtime: (3, 4), ctime: (5, -6) };

fn owner(n: u8) -> OwnerKey {
    // The letters are needed because the owner is trimmed, and six values of `n` are white space, which would all
    // become the same owner.
    OwnerKey::of(&[b'a', n, b'z'])
}

fn address(n: u16) -> IpAddr {
    match n % 3 {
        0 => from_number(AddressFamily::V4, 0x0a00_0000 + u128::from(n)),
        1 => from_number(AddressFamily::V6, 0xfd00 << 112 | u128::from(n)),
        _ => from_number(AddressFamily::V6, 0xfd00 << 112 | u128::from(n) << 16),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_index_equals_a_set(changes in proptest::collection::vec((any::<bool>(), 0u8..40, 0u16..1500), 0..800)) {
        let mut index = Index::create(tempfile::tempfile().unwrap(), &Contents::default()).unwrap();
        let mut model: BTreeSet<(OwnerKey, IpAddr)> = BTreeSet::new();
        for (add, n, a) in changes {
            // An address has one owner at most.
            let taken = model.iter().find(|(_, one)| *one == address(a)).copied();
            match (add, taken) {
                (true, None) => {
                    index.insert(owner(n), address(a)).unwrap();
                    model.insert((owner(n), address(a)));
                }
                (false, Some((its_owner, its_address))) => {
                    index.remove(its_owner, its_address).unwrap();
                    model.remove(&(its_owner, its_address));
                }
                _ => {}
            }
        }
        index.finish(STAMP).unwrap();
        let index = Index::open(index.file.try_clone().unwrap(), &STAMP).unwrap();
        for n in 0..40 {
            let mine = model.iter().filter(|(one, _)| *one == owner(n)).map(|(_, address)| *address);
            let mut found = index.owned(owner(n)).unwrap().expect("few addresses");
            found.sort_unstable();
            prop_assert_eq!(found, mine.collect::<Vec<_>>());
        }
        for a in (0..1500).map(address) {
            let (block, place) = Block::of(a);
            prop_assert_eq!(index.taken(block).unwrap().has(place), model.iter().any(|(_, one)| *one == a));
        }
        let mut all = index.contents().unwrap().owners;
        all.sort_unstable();
        prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn any_damage_to_the_header_is_detected(at in 0..HEAD_USED as u64, flip in 1u8..) {
        let file = tempfile::tempfile().unwrap();
        let mut index = Index::create(file.try_clone().unwrap(), &Contents::default()).unwrap();
        index.finish(STAMP).unwrap();
        prop_assert!(Index::open(file.try_clone().unwrap(), &STAMP).is_some());
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ flip], at).unwrap();
        prop_assert!(Index::open(file, &STAMP).is_none());
    }
}

#[test]
fn only_a_finished_index_of_the_same_state_is_trusted() {
    let file = tempfile::tempfile().unwrap();
    let open = |stamp: &Stamp| Index::open(file.try_clone().unwrap(), stamp).is_some();
    let mut index = Index::create(file.try_clone().unwrap(), &Contents::default()).unwrap();
    assert!(!open(&STAMP) && !open(&Stamp::default()), "not finished");
    index.finish(STAMP).unwrap();
    assert!(open(&STAMP));
    for other in [
        Stamp { boot: [8; 16], ..STAMP },
        Stamp { device: 9, ..STAMP },
        Stamp { inode: 9, ..STAMP },
        Stamp { mtime: (3, 5), ..STAMP },
        Stamp { ctime: (5, 6), ..STAMP },
    ] {
        assert!(!open(&other), "{other:?}");
    }
    index.begin().unwrap();
    assert!(!open(&STAMP), "a change was begun");
    index.finish(STAMP).unwrap();
    file.set_len(index.length() - 1).unwrap();
    assert!(!open(&STAMP), "cut short");
}

#[test]
fn a_reader_notices_a_change_that_another_process_began() {
    let file = tempfile::tempfile().unwrap();
    let mut writer = Index::create(file.try_clone().unwrap(), &Contents::default()).unwrap();
    writer.finish(STAMP).unwrap();
    let reader = Index::open(file, &STAMP).unwrap();
    assert!(reader.is_as_opened(&STAMP));
    writer.begin().unwrap();
    assert!(!reader.is_as_opened(&STAMP), "the change is not finished");
    writer.insert(owner(1), address(1)).unwrap();
    writer.finish(STAMP).unwrap();
    assert!(!reader.is_as_opened(&STAMP), "the tables have more entries");
    let again = Index::open(reader.file, &STAMP).unwrap();
    assert_eq!((again.head, again.head.owners.used), (writer.head, 1));
}

#[test]
fn a_table_is_a_quarter_full_at_first_and_crowded_from_three_fifths_on() {
    let fill = |entries: usize| Fill::for_entries(entries).unwrap();
    assert_eq!([0, 64, 65, 128, 129].map(|entries| fill(entries).size), [256, 256, 512, 512, 1024]);
    assert!(Fill::for_entries(1 << 30).is_err() && Fill::for_entries(usize::MAX).is_err());
    let is_crowded = |used: u32| Fill { used, ..fill(0) }.is_crowded();
    assert!(!is_crowded(0) && !is_crowded(153) && is_crowded(154));
}

/// Plugins of several versions may share a node. One that writes another format needs another [`MAGIC`].
#[test]
fn the_format_of_the_file_is_fixed() {
    let mut contents = Contents::default();
    for n in 0..60 {
        contents.insert(Some(owner(1 + n)), address(u16::from(n) << 8));
    }
    contents.crowded.insert(owner(100));
    let mut index = Index::create(tempfile::tempfile().unwrap(), &contents).unwrap();
    index.insert(owner(0), address(60 << 8)).unwrap();
    index.finish(STAMP).unwrap();
    let mut bytes = vec![0; usize::try_from(index.length()).unwrap()];
    index.file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes.len(), 4096 + 256 * OWNER_SLOT + 256 * BLOCK_SLOT);
    assert_eq!(
        cni_spec::text::hex(&Sha256::digest(&bytes)),
        "6ef8f87727bd2fbc2424cdfac8bd937630c1299c5fe5212c43128344b3c65283"
    );
}

/// Such a file is damaged, since a table grows before it is full. A call must not hang because of it.
#[test]
fn a_search_in_a_table_without_an_empty_slot_ends() {
    let index = Index::create(tempfile::tempfile().unwrap(), &Contents::default()).unwrap();
    let slots = usize::try_from(index.length() - HEAD).unwrap();
    index.file.write_all_at(&vec![REMOVED; slots], HEAD).unwrap();
    assert_eq!(index.owned(owner(1)).unwrap(), Some(Vec::new()));
    assert_eq!(index.taken(Block::of(address(1)).0).unwrap(), Bits::default());
}

#[test]
fn tables_grow_and_removed_entries_do_not_fill_them() {
    let mut index = Index::create(tempfile::tempfile().unwrap(), &Contents::default()).unwrap();
    let of = |n: u16| OwnerKey::of(&(n / 50).to_be_bytes());
    for n in 0..1250 {
        index.insert(of(n), address(n)).unwrap();
    }
    assert_eq!(index.owned(of(0)).unwrap().unwrap().len(), 50);
    for n in 0..1250 {
        index.remove(of(n), address(n)).unwrap();
    }
    for n in 0..5000u16 {
        index.insert(owner(1), address(n)).unwrap();
        index.remove(owner(1), address(n)).unwrap();
    }
    assert_eq!(index.contents().unwrap().owners, []);
    assert!(index.head.owners.size < 1 << 14, "{:?}", index.head);
}

/// The time of the next change must not depend on the number of an owner's addresses.
#[test]
fn an_owner_of_many_addresses_takes_one_slot() {
    let mut contents = Contents::default();
    for n in 0..30_000 {
        contents.insert(Some(owner(1)), address(n));
    }
    contents.insert(Some(owner(2)), address(30_001));
    let mut index = Index::create(tempfile::tempfile().unwrap(), &contents).unwrap();
    assert_eq!(index.head.owners.used, 2);
    let owned = |index: &Index, n| index.owned(owner(n)).unwrap();
    assert_eq!((owned(&index, 1), owned(&index, 2)), (None, Some(vec![address(30_001)])));
    index.insert(owner(1), address(30_002)).unwrap();
    index.remove(owner(1), address(0)).unwrap();
    assert_eq!((owned(&index, 1), index.head.owners.used), (None, 2));
    let (block, place) = Block::of(address(30_002));
    assert!(index.taken(block).unwrap().has(place));
    index.grow().unwrap();
    assert_eq!((owned(&index, 1), owned(&index, 2).map(|all| all.len())), (None, Some(1)));
    // An owner with the maximum number of addresses is still listed.
    let mut contents = Contents::default();
    for n in 0..u16::try_from(MOST).unwrap() {
        contents.insert(Some(owner(4)), address(n));
    }
    let most = Index::create(tempfile::tempfile().unwrap(), &contents).unwrap();
    assert_eq!(owned(&most, 4).unwrap().len(), MOST);
    // The same holds if the addresses are added one by one.
    for n in 0..u16::try_from(MOST).unwrap() {
        index.insert(owner(3), address(40_000 + n)).unwrap();
    }
    assert_eq!(owned(&index, 3).unwrap().len(), MOST);
    index.insert(owner(3), address(50_000)).unwrap();
    assert_eq!(owned(&index, 3), None);
}
