"""Files and tables read as partitions of rows; one decoder per format."""
