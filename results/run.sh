#!/usr/bin/env bash
# Makes everything in results/ from the data files: results/run.sh DATA OUT [STEP …]. An interrupted call goes on.
# OPTIONS are passed on to every run, such as OPTIONS="--workers 1" or OPTIONS="--device cuda"; METHODS are fewer.
# The step paper (or paper_femnist, paper_shakespeare, paper_cxr8) makes the paper's own scenarios at their size. It is
# not among the default steps: it wants all data, a GPU, and in WEIGHTS a .safetensors file of ImageNet's weights.
# UPDATES=2 SEEDS=0 tries it out.
set -euo pipefail
here=$(dirname "$0") data=$1 out=$2
shift 2
methods=${METHODS:-fedasync,fedortho,fedgs,dcasgd,fedbuff,asyncfeded,asyncbezier,asyncbezier-ed,asyncsgd}
since_2023=delay-adaptive,rescaled,generalized-asyncsgd,fedfa,fedcompass,port,ca2fl,ace,aced,ringleader,fadas
read -ra options <<< "${OPTIONS:-}"
asyncmanifold() { # COMMAND …: with OPTIONS where runs are made
  case $1 in run | compare | tune) command asyncmanifold "$@" "${options[@]}" ;; *) command asyncmanifold "$@" ;; esac
}

methods_of() { # FILE: the methods that a scenario adds
  sed -n -e 's/^\[methods\.\([^.]*\)\]/\1/p' -e 's/^"\(.*\)" = {.*/\1/p' "$1" | paste -sd,
}
tune() { # SCENARIO FILE VALUES UPDATES: η_g on validation data of a seed of its own, coarsely at UPDATES, then finely
  asyncmanifold tune "$1" --data "$data/$2" --method $methods --values "$3" --seeds 100 --out "$out/$1-coarse" \
    --set updates="$4" --set evaluate_every="$4" --resume
  asyncmanifold tune "$out/$1-coarse/tuned.toml" --data "$data/$2" --method $methods --factors 0.25,0.5,1 \
    --seeds 100 --out "$out/$1-tune" --resume
}
compare() { # SCENARIO FILE NAME SEEDS [MORE …]: with the learning rates chosen
  asyncmanifold compare "$out/$1-tune/tuned.toml" --data "$data/$2" --seeds "$4" --out "$out/$3" --resume "${@:5}"
  asyncmanifold report "$out/$3"
}
femnist() {
  tune femnist-mini femnist.npz 0.5,1,2,3 64
  compare femnist-mini femnist.npz femnist-mini 0,1,2 --methods $methods --set channels_last=true # faster
}
landscape() { # the loss around three updates of the first run with curves; planes for one of them
  for update in 16 64 112; do
    asyncmanifold landscape "$out/femnist-mini/asyncbezier/seed-0" --update $update --workers 2 \
      --grid $((update == 64 ? 25 : 2)) --out "$out/landscape-$update"
  done
}
central() { # the same CNN on the pooled data, with the example passes of straight methods (32) and of curves (64)
  pooled() { # EPOCHS NAME [MORE …]
    asyncmanifold compare femnist-mini --data "$data/femnist.npz" --methods asyncsgd --seeds 0,1,2 --resume --out "$out/$2" \
      --set clients=1 --set updates=1 --set point_epochs="$1" --set proximal=0 --set global_lr=1 "${@:3}"
  }
  pooled 32 central-32
  pooled 64 central-64
  pooled 32 central-32-at-4 --set local_lr=4e-3 --set channels_last=true
}
shakespeare() {
  tune shakespeare-mini shakespeare_speeches.jsonl.gz 0.5,1,2,3,5 60
  compare shakespeare-mini shakespeare_speeches.jsonl.gz shakespeare-mini 0,1,2 --methods $methods
}
cxr8() {
  asyncmanifold tune cxr8-mini --data "$data/cxr8_128.npz" --method $methods --values 0.25,0.5,1,2,3 --seeds 100 \
    --set updates=40 --set evaluate_every=40 --out "$out/cxr8-mini-tune" --resume
  compare cxr8-mini cxr8_128.npz cxr8-mini 0,1,2 --methods $methods
}
ablation() {
  asyncmanifold tune "$here/ablation.toml" --data "$data/femnist.npz" --method "$(methods_of "$here/ablation.toml")" \
    --values 0.5,1,2 --seeds 0 --out "$out/ablation-tune" --resume
}
on_chord() { # the curve that the ablation found best, at full length and on three seeds
  some=asyncbezier,asyncbezier-ed
  settings=(--set interior_start=chord --set channels_last=true)
  asyncmanifold tune femnist-mini --data "$data/femnist.npz" --method $some --values 0.25,0.5,1 --seeds 100 \
    --out "$out/on-chord-tune" --resume "${settings[@]}"
  compare on-chord femnist.npz on-chord 0,1,2 --methods $some "${settings[@]}"
}
thresholds() { # ϑ = 1, the paper's for FEMNIST, against the 0 of the tables above
  for threshold in 0 1; do
    compare femnist-mini femnist.npz threshold-$threshold 0,1,2 --methods asyncbezier,asyncbezier-ed \
      --set threshold=$threshold --set channels_last=true
  done
}
local_epochs() { # and with curves started on the chord, at their own learning rates; and with the paper's ϑ
  for epochs in 1 2 5 10; do
    settings=(--set updates=64 --set evaluate_every=16 --set channels_last=true
      --set point_epochs=$epochs --set curve_epochs=$((epochs < 2 ? epochs : 2)))
    compare femnist-mini femnist.npz "local-epochs-$epochs" 0 "${settings[@]}" \
      --methods fedasync,fedortho,fedgs,dcasgd,fedbuff,asyncbezier,asyncbezier-ed
    compare on-chord femnist.npz "local-epochs-$epochs-on-chord" 0 "${settings[@]}" --set interior_start=chord \
      --methods asyncbezier,asyncbezier-ed
    compare femnist-mini femnist.npz "local-epochs-$epochs-threshold-1" 0 "${settings[@]}" --set threshold=1 \
      --methods asyncbezier,asyncbezier-ed
  done
}
long_jobs() { # one seed: a run with curves takes half an hour
  asyncmanifold compare "$here/long-jobs.toml" --data "$data/femnist.npz" \
    --methods "$(methods_of "$here/long-jobs.toml")" --seeds 0 --out "$out/long-jobs" --resume
  asyncmanifold report "$out/long-jobs"
}
curved() { # spaces that a model needs, against flat ones; no data file
  for scenario in sphere hyperbolic; do
    some=fedasync,asyncsgd,fedbuff,asyncbezier # where curves take a minute each
    [ $scenario = hyperbolic ] || some=$methods,fedavg
    for space in $scenario flat; do
      name=$scenario-$space
      asyncmanifold tune $scenario --set space=$space --method $some --values 0.25,0.5,1,2,3,5 --seeds 100 \
        --out "$out/$name-tune" --resume
      asyncmanifold compare "$out/$name-tune/tuned.toml" --set space=$space --methods $some --seeds 0,1,2 \
        --out "$out/$name" --resume
    done
  done
}
tunnels() {
  asyncmanifold compare "$here/tunnels.toml" --methods "$(methods_of "$here/tunnels.toml")" --seeds 0,1,2,3 \
    --out "$out/tunnels" --resume
}
privacy() { # score against ε on the digits; the noise cannot be repeated, so the last digits differ every time
  asyncmanifold compare "$here/privacy.toml" --methods "$(methods_of "$here/privacy.toml")" --seeds 0,1,2 \
    --out "$out/privacy" --resume
  asyncmanifold report "$out/privacy"
}
surfaces() { # discs against curves and tangent steps, which have the scenario's rates on digits, and are in femnist's table
  some=asyncsgd,asyncbezier,asyncdisc
  asyncmanifold tune digits --method asyncdisc --values 0.5,1,2,3 --seeds 100 \
    --out "$out/surfaces-digits-tune" --resume
  asyncmanifold compare "$out/surfaces-digits-tune/tuned.toml" --methods $some --seeds 0,1,2 \
    --out "$out/surfaces-digits" --resume
  asyncmanifold tune femnist-mini --data "$data/femnist.npz" --method asyncdisc --values 0.5,1 --seeds 100 \
    --out "$out/surfaces-femnist-tune" --resume --set channels_last=true
  compare surfaces-femnist femnist.npz surfaces-femnist 0,1,2 --methods asyncdisc --set channels_last=true
}
uploads() { # what codecs cost: three methods, two tasks; femnist is shorter than in its own table
  some=fedasync,fedbuff,asyncbezier
  for codec in float32 fp16 int8 curve; do
    asyncmanifold compare digits --methods $some --seeds 0,1,2 --set outgoing=$codec \
      --out "$out/uploads-digits-$codec" --resume
    asyncmanifold compare "$here/femnist-mini/tuned.toml" --data "$data/femnist.npz" --methods $some --seeds 0,1,2 \
      --set outgoing=$codec --set updates=32 --set evaluate_every=2 --set channels_last=true \
      --out "$out/uploads-femnist-mini-$codec" --resume
  done
}
attacks() { # every attack against every gate, with three methods; no data file
  for attack in none sign-flip scaling gaussian-noise label-flip a-little-is-enough inner-product flooding \
    false-examples not-a-number; do
    asyncmanifold compare "$here/attacks.toml" --set attack=$attack --methods "${METHODS:-$(methods_of "$here/attacks.toml")}" \
      --seeds "${SEEDS:-0,1}" --out "$out/attacks/$attack" --resume
  done
}
search() { # for a composition of parts that is better than published methods, on validation data; not among the defaults
  for pair in femnist-mini:femnist.npz shakespeare-mini:shakespeare_speeches.jsonl.gz cxr8-mini:cxr8_128.npz; do
    python "$here/search_compositions.py" "${pair%%:*}" "$data/${pair#*:}" "$out/search-${pair%%:*}.jsonl"
  done
}
newer() { # η_g of the methods since 2023, which differ in scale, at half length on validation data; not a default
  for task in shakespeare-mini:shakespeare_speeches.jsonl.gz:60 femnist-mini:femnist.npz:64 cxr8-mini:cxr8_128.npz:30; do
    IFS=: read -r scenario file updates <<< "$task"
    for some in delay-adaptive,rescaled,generalized-asyncsgd,fedfa,fedcompass:1,2,3 port,ca2fl:0.5,1,2 \
      ace,aced,ringleader:0.05,0.1,0.2 fadas:0.003,0.01,0.03; do
      asyncmanifold tune "$scenario" --data "$data/$file" --method "${some%%:*}" --values "${some#*:}" --seeds 100 \
        --set updates="$updates" --set evaluate_every="$updates" --set channels_last=true \
        --out "$out/newer-$scenario/${some%%[,:]*}" --resume
    done
  done
}
compositions() { # what the search found against all published methods, five seeds: hours; not a default
  for pair in femnist-mini:femnist.npz shakespeare-mini:shakespeare_speeches.jsonl.gz cxr8-mini:cxr8_128.npz; do
    scenario=${pair%%:*}
    asyncmanifold compare "$here/$scenario/tuned.toml" --data "$data/${pair#*:}" --seeds 0,1,2,3,4 --resume \
      --methods "${METHODS:-orthomean,$methods,$since_2023}" --out "$out/compositions-$scenario" \
      --set channels_last=true
  done
  asyncmanifold compare "$here/local-rate.toml" --data "$data/femnist.npz" --seeds 0,1,2,3,4 --resume \
    --methods "$(methods_of "$here/local-rate.toml")" --out "$out/compositions-local-rate"
  asyncmanifold compare "$here/local-rate-cxr8.toml" --data "$data/cxr8_128.npz" --seeds 0,1,2,3,4 --resume \
    --methods "$(methods_of "$here/local-rate-cxr8.toml")" --out "$out/compositions-local-rate-cxr8"
}
paper_size() { # SCENARIO FILE [MORE …]: the paper's settings, which the scenario has
  asyncmanifold compare "$1" --data "$data/$2" --methods $methods --seeds "${SEEDS:-0,1,2}" --out "$out/paper-$1" \
    --resume ${UPDATES:+--set "updates=$UPDATES"} "${@:3}"
  asyncmanifold report "$out/paper-$1"
}
paper_femnist() { paper_size femnist femnist.npz; }
paper_shakespeare() { paper_size shakespeare shakespeare_speeches.jsonl.gz; }
paper_cxr8() { paper_size cxr8 cxr8_128.npz ${WEIGHTS:+--set "weights=$WEIGHTS"}; }
paper() {
  paper_femnist
  paper_shakespeare
  paper_cxr8
}
[ $# -gt 0 ] || set -- femnist landscape shakespeare cxr8 ablation on_chord thresholds local_epochs long_jobs central \
  curved tunnels surfaces uploads privacy attacks
for step in "$@"; do $step; done
