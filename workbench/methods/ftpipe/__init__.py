"""FTPipe (Eliad et al., ATC'21): stages of any part of a model, trained asynchronously."""
