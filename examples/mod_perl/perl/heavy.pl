#!/usr/bin/perl
# CPU-bound: ten thousand logarithms.
my $sum = 0;
$sum += log($_) for 1 .. 10_000;
print "Content-Type: text/plain\n\n$sum\n";
