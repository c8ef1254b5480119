"""The computers of the DSMP paper, as virtual clusters; their steps take as long as on this machine."""

DSMP_C1 = {
    "name": "DSMP, configuration C1: one computer with four cores and eight threads (i7-4790S)",
    "groups": [{"name": "c1", "workers": 8, "cores": 4, "inside": "shared-memory"}],
}
DSMP_C2 = {
    "name": "DSMP, configuration C2: one server with 64 logical cores (Xeon Gold 5218)",
    "groups": [{"name": "c2", "workers": 64, "cores": 64, "inside": "shared-memory"}],
}
