"""Words that hint at others: who says the left may mean the right, but not the other way round.

Everyday talk about what a program calls by its proper name. Written from knowledge of the language.
"""

from __future__ import annotations

from typing import Final

HINTS: Final = """
chuck bin ditch nuke zap scrap kill nix > delete remove
tidy > clean delete organise
fix mend repair correct > update edit
bump tweak touch > update
grab pull fish > get fetch download
poke dig nose > search get
peek glance > get view read
jot scribble > write create note
shoot fire drop > send
hook wire > connect configure
whip knock > create
spin > start create
stick pop throw chuck > add put
show tell > get list
see look > get view list search
know > get
need > get
happen happening > list get event activity
who > user person list get member
where > location find locate search
when > time date schedule
how_many > count list statistic
how_much > price cost count balance
how_long > time duration
how_far > distance
how_often > count frequency
what_time > time current
which > list get
why > explanation log error
what_changed > diff history commit log
boss colleague mate guy folk > user member people contact
outage down > incident status alert
slow sluggish > performance latency
broken > error issue
crash crashing > error exception log
bug > issue error
money paid > payment invoice balance
owe > invoice balance payment
umbrella jacket sunny rainy snow wind cold hot > weather forecast
lunch dinner eat > restaurant place
coffee > place restaurant
drive walk bike > direction route distance
nearby near close_by > place search location
photo > image file
song > music track
tune > music
grocery groceries shopping > task list product
homework > task
party > event
dentist doctor > appointment calendar event
busy free > availability calendar
standup > meeting event
teammate > user member
password > secret credential
website > page url browser
logged > log
laptop computer pc machine > system desktop file
spend spending > cost expense
earn earned > revenue payment
profit > revenue
clip > video
paper > document research
spelling typo > text edit
paste > clipboard
headline headlines > news
celsius fahrenheit degrees > temperature weather
kilometer mile > distance
dollar euro > currency payment price
ceo > person company
competitor > company
visitor > traffic analytic user
signup > user register
newsletter > email campaign
password_reset > password user
diff > change
prod > production environment deploy
staging > environment deploy
customer > contact
tracker > issue project
"""
