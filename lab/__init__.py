"""The laboratory: baselines of other papers, studies and benchmarks. No part of the package."""
