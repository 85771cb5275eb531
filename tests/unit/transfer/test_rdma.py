from pdd.transfer import rdma


def test_pypis_ucx_is_told_to_be_without_verbs():
    assert "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true" in rdma.rdma_fault({})


def test_a_missing_system_ucx_is_told(monkeypatch):
    monkeypatch.setattr(rdma, "find_library", lambda name: None)
    fault = rdma.rdma_fault({"RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY": "true"})
    assert "--with-verbs" in fault


def test_a_system_ucx_without_verbs_is_told_with_the_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(rdma, "find_library", lambda name: "libucp.so.0")
    environment = {
        "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY": "true",
        "UCX_MODULE_DIR": str(tmp_path),
    }
    assert f"looked in {tmp_path}" in rdma.rdma_fault(environment)
    (tmp_path / "libuct_ib.so.0").touch()
    assert "libuct_ib" not in rdma.rdma_fault(environment)
