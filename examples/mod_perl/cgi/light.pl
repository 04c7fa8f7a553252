#!/usr/bin/perl
# Next to nothing: what is measured is the way to the script.
print "Content-Type: text/plain\n\nhello\n";
