"""Commands of the analysis: parse, call one function, print."""
