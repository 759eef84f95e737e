# zsh capture.zsh ZSH ROOT SHARE DIR LINE: prints what the tab key completes at the end of a line, one word per line.
# ROOT has zsh's modules and functions, SHARE the completions; DIR is an empty directory.
zsh=$1 root=$2 share=$3 dir=$4 line=$5
module_path=($root/usr/lib/*/zsh/*(N))
zmodload zsh/zpty || exit 1
# In the script below, and for zpty, which joins words with blanks.
rc_dir=${(q)dir} rc_share=${(q)share} rc_root=${(q)root}
cat > $dir/rc <<RC
module_path=(${(j: :)${(@q)module_path}})
fpath=($rc_share/zsh/site-functions $rc_root/usr/share/zsh/functions/**/*(/N))
PROMPT= RPROMPT=
autoload -Uz compinit
compinit -u -D
zstyle ':completion:*' insert-tab false
# Calls of compadd that only fill arrays add no words.
compadd() {
    if [[ \${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then
        builtin compadd "\$@"
        return
    fi
    local -a words
    builtin compadd -A words "\$@"
    print -rl -- \$words >> $rc_dir/words
    builtin compadd "\$@"
}
finished() { : > $rc_dir/finished; exit }
comppostfuncs=(finished)
bindkey '^I' complete-word
: > $rc_dir/ready
RC
wait_for() {
    repeat 2400; do
        [[ -e $dir/$1 ]] && return
        sleep 0.05
    done
    print -u2 "zsh is not $1"
    exit 1
}
zpty -b interactive ${(q)zsh} -f -i
zpty -w interactive "source $rc_dir/rc"
wait_for ready
zpty -w -n interactive "$line"$'\t'
wait_for finished
zpty -d interactive
cat $dir/words
