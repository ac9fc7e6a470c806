"""What a command line of ringrun says: its options and horovodrun's, the hosts, and the variables that ranks get."""
