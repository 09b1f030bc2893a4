"""Reading finished runs: pictures, comparisons with statistics, one page to hand around."""
