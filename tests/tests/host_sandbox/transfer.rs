//! Bytes between tensors and a guest that reads and writes them.

use selvedge_host::runtime::NamedTensor;
use selvedge_host::tensor::Tensor;
use selvedge_package::tensor::Datatype;
use selvedge_tests::onnx_writer;
use selvedge_tests::programs::set_up;

use crate::fixture::{Package, ask, floats, fp32};

#[test]
fn a_guest_reads_what_there_is_and_writes_what_comes() {
    let component = std::fs::read(set_up("modules/bench/copy.wasm")).unwrap();
    let package = Package::new(
        onnx_writer::identity(),
        &[("x", "FP32", &[-1]), ("z", "UINT8", &[-1])],
        &[("y", "FP32", &[-1]), ("z", "UINT8", &[-1])],
    )
    .component(component)
    .write();
    let loaded = package.open().unwrap();
    // Of an odd length, so that the halves differ, and twice: an instance is used again.
    for count in [0_u8, 1, 5, 201] {
        let bytes: Vec<u8> = (1..=count).collect();
        let numbers: Vec<f32> = bytes.iter().map(|&byte| f32::from(byte) / 3.0).collect();
        let (x, z) = (
            fp32("x", &[count.into()], &numbers),
            Tensor::fixed(Datatype::Uint8, [u64::from(count)], bytes.clone()).unwrap(),
        );
        let outputs = ask(&loaded, vec![x, NamedTensor::new("z", z.clone())]).unwrap();
        assert_eq!(floats(&outputs[0].tensor), numbers);
        assert_eq!(outputs[1].tensor.as_fixed(), Some(&bytes[..]));
        assert_eq!(z.as_fixed(), Some(&bytes[..]), "what the caller holds is not written to");
    }
    assert_eq!(loaded.instances_made(), 1);
}
