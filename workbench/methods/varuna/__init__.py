"""Varuna (EuroSys 2022): elastic pipelines that choose their own shape."""

from workbench.methods.varuna.autoconfig import AutoConfig
from workbench.methods.varuna.placement import get_this_rank_config_varuna, get_varuna_config

__all__ = ["AutoConfig", "get_this_rank_config_varuna", "get_varuna_config"]
