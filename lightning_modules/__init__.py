"""One file a method: the client as a LightningModule and, where it differs, its Server."""
