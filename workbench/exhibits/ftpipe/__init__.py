"""Exhibits of FTPipe (Eliad et al., ATC 2021). Its paper's text was not available to this project:
they have names of their own, and values of its released code stand beside ours."""
