"""How clients are described, compared and grouped: the answers to describe, compare, group and when."""
