from tests.results.conftest import real as real
