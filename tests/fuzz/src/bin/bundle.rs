//! A metadata bundle in CBOR, as anybody may send it, and then again with everything in it signed. What is
//! accepted must read back from the disk as it is, mean the same there, and be acceptable again.
#![no_main]

use std::cell::LazyCell;

use libfuzzer_sys::fuzz_target;
use selvedge_fuzz::world::World;
use selvedge_package::archive::MetadataFiles;
use selvedge_package::trust::{ImageFiles, MetadataBundle, TrustState, accept, adopt_roots, verify_image};
use selvedge_protocol::envelope::from_cbor;

thread_local! {
    static WORLD: LazyCell<(World, TrustState)> = LazyCell::new(|| {
        let world = World::default();
        let state = world.state();
        (world, state)
    });
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(bundle) = from_cbor::<MetadataBundle>(bytes) else {
        return;
    };
    WORLD.with(|world| {
        let (world, state) = &**world;
        assert!(accept(state, &bundle, &world.device, Some(world.now)).is_err(), "nobody signed it");
        let signed = world.signed(&bundle);
        check(world, state, &signed);
    });
});

fn check(world: &World, state: &TrustState, signed: &MetadataBundle) {
    if let Ok(files) = MetadataFiles::of(signed, Some(&world.device)) {
        let _ = files.bundle();
    }
    let files = ImageFiles {
        targets: signed.image.targets.clone(),
        bins: signed.image.delegated.iter().map(|file| (file.role.clone(), file.file.clone())).collect(),
    };
    if let Some(root) = signed.image.roots.last() {
        let _ = verify_image(root, &files, world.now);
    }
    let rooted = adopt_roots(state, signed).ok().flatten();
    if let Some(rooted) = &rooted {
        assert!(rooted.image_root_version().unwrap() >= state.image_root_version().unwrap());
        assert!(rooted.director_root_version().unwrap() >= state.director_root_version().unwrap());
    }
    let Ok(accepted) = accept(rooted.as_ref().unwrap_or(state), signed, &world.device, Some(world.now))
    else {
        return;
    };
    let held = TrustState::decode(&accepted.state.encode().unwrap()).unwrap();
    assert_eq!(held, accepted.state);
    assert_eq!(held.desired(&world.device).unwrap().as_ref(), Some(&accepted.desired));
    assert!(held.floor() >= state.floor());
    match accept(&held, signed, &world.device, Some(world.now)) {
        Ok(again) => assert_eq!(again.desired, accepted.desired),
        // Its own date may be after the end of its timestamp.
        Err(error) => assert_eq!(error.reason(), "expired", "{error}"),
    }
    let other = "edge-2".parse().unwrap();
    assert!(accept(state, signed, &other, Some(world.now)).is_err(), "it is for another device");
}
