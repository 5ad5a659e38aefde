"""What things of computers are called, in classes of words that mean nearly the same.

General English and the English of computers, written from knowledge of the language. One class a
line; `_` joins the words of a phrase. A word may be in several classes.
"""

from __future__ import annotations

from typing import Final

TECHNICAL: Final = """
folder directory path
file document
file path
document paper page text
document spreadsheet sheet slide
document wiki article page knowledge_base
spreadsheet sheet excel workbook xlsx csv table
sheet worksheet tab
cell row column range
row record entry line
column field attribute
presentation slide deck powerpoint pptx
pdf document
word docx
note memo
notebook jupyter
page site website webpage web_page
page block
website site web domain
url link address web_address uri
link hyperlink
link connection
tab window page
browser chrome web firefox
form input field
field input textbox
button control element
element node component
dropdown select combobox
dialog popup alert modal
cookie session storage
console log
network request traffic
request call api
response answer reply
header metadata
html markup source page
text content words
content text body
body text content
markdown md
title headline name heading
section heading chapter
paragraph text block
word term phrase
template boilerplate blueprint pattern
style format css
font typography
colour palette
design mockup layout figma
diagram chart flowchart drawing graph
diagram uml mermaid
mind_map mindmap
chart graph plot diagram visual
line_chart trend
pie_chart share proportion percentage
bar_chart column
dashboard report panel
report summary statistic analytic
table grid
map location geography
board kanban whiteboard
card task ticket
issue bug ticket defect problem task
ticket case request issue
task todo to_do action_item chore
task job
todo checklist shopping_list
checklist list
story epic issue
sprint iteration cycle
milestone goal deadline
backlog list
project workspace
goal objective target okr
deadline due_date due
priority urgency importance
status state progress condition health
assignee owner responsible
label tag category
tag keyword hashtag
category type kind class
version release revision
version tag
release launch changelog
changelog history release_note
release_note changelog
history log past activity
history version revision
commit change revision
diff change patch comparison
branch line
pull_request merge_request pr mr change review
merge_request mr
code_review review pull_request
repository project codebase code
code source snippet program script
code function class symbol
script program code
function method procedure routine
function lambda serverless
variable env environment
symbol definition
definition declaration
reference usage
dependency package library module
package library module dependency npm
library framework package
component widget
plugin extension addon
test check suite spec
test_case test
build pipeline ci job
pipeline workflow ci
workflow automation pipeline process flow
workflow action
run execution job build
job task process
cron schedule
step stage
log logs output trace
log_entry event
error exception failure bug crash
error issue problem
exception stack_trace traceback
warning alert
trace span
metric measurement statistic
metric performance
monitor alert check
performance speed latency
performance lighthouse
memory ram heap
memory knowledge fact
cpu processor load
disk storage drive space
server machine host vm instance
instance vm server machine
virtual_machine vm instance
container docker pod
pod container
image docker_image
cluster kubernetes
node machine
namespace project
service app
deployment rollout
replica copy
volume disk
secret password credential key token
password credential passphrase
credential login
key token secret
api_key token key
certificate tls ssl
permission access right role
role permission group
access permission
policy rule
rule policy condition
firewall security_group
vulnerability security weakness cve
security vulnerability
scan audit
database datastore store
database table
table collection
collection set
document record
record entry row
schema structure
schema table
index search
query sql statement
sql query database
view query
key value
cache redis
vector embedding
embedding vector
dataset data table
data record
model ai llm
model machine_learning
prompt instruction
agent assistant bot
bot agent
token key
webhook callback hook
endpoint url api
api endpoint service
integration connection
connection link
queue topic
topic queue subject
stream feed
bucket storage
bucket s3
object file
domain dns
dns domain record
ip address
port socket
device phone
phone mobile device
phone number
simulator emulator device
light lamp
lamp light bulb
thermostat temperature heating
sensor reading
switch outlet
lock door
camera video
home house
room area
screen display
desktop screen window
window app
clipboard copy paste
keyboard key
mouse click
file_system disk folder
command shell terminal
terminal shell command console
shell bash command
process program
process pid task
session login
session conversation
setting configure preference option
preference setting
configure setting
option choice
limit quota
quota limit usage
usage consumption statistic
usage billing
billing invoice cost
license licence
feature flag
feature_flag flag toggle
flag toggle
experiment test
survey form
form survey questionnaire
poll vote
review rating
rating star score
score rating
game play
sport match
match game
team club
league season
quote saying
joke fun
name title
description text
summary overview
overview summary dashboard
detail information
list collection
structure tree layout
tree hierarchy structure
hierarchy tree parent
parent ancestor
child sub
subtask child
size length
permission sharing
guide documentation manual instruction
documentation guide manual reference
example sample
sample example
tutorial guide
best_practice guide
manage create update delete handle
upsert create update
stash save
blame annotate author
cherry_pick commit
rebase history
worktree checkout
staged staging index
unstaged working
protected branch
code_owner reviewer
reviewer approver
approve approval
conflict collision
lint syntax check
artifact build output
runner agent
flaky unstable
coverage test
accessibility a11y wcag
visual_test screenshot
crash error
stack_trace trace
uptime availability status
heartbeat health ping
health status check ping
ping health alive
sla deadline
escalate on_call
runbook playbook
audit_log activity history
activity event history
event log
webhook event
trigger automation
rollback revert
rollout deployment
canary release
scale replica
ingress route
helm chart
manifest yaml
configmap configure
secret env
exec command
port_forward tunnel
tunnel proxy
droplet vm server
snapshot backup
region location
load_balancer traffic
cdn cache
ssl certificate
zone domain
worker function
kv key
migration schema
foreign_key constraint
constraint rule key
trigger function
view table
aggregate sum group
explain plan
plan explain
collection table
document record
insert add create
facet filter
synonym search
typo search
hit result
full_text search
similarity vector semantic
semantic similarity vector
namespace index
embedding vector
dataset table
experiment run
fine_tune train
prompt template
completion chat
token usage
context window
heap memory
viewport screen size
resize size
emulate simulate
device phone
throttle slow
lighthouse audit performance
selector element
snapshot accessibility_tree
evaluate javascript script run
javascript script js code
iframe frame
tab page
history back
back previous
upload file
download save
drag drop
clipboard paste
orientation rotate
gesture swipe
swipe scroll gesture
tap click press touch
long_press hold
keystroke key
foreground current
emulator simulator
app application
bundle package
package_manager npm
lockfile dependency
license dependency
cve vulnerability
policy permission
tenant organisation
realm tenant
client application
scope permission
token secret
session login
mfa two_factor
grant permission
audit log
flag feature toggle
variation variant
targeting rule
segment group
content_type schema
entry content article
asset file media
locale language
slug url
publish visible
space workspace
block paragraph
property field attribute
parent page
template form
macro script
formula calculate
pivot table
conditional rule
range cell
named_range range
sheet tab
workbook file
slide page
footer header
bullet list
heading title
tab sheet
revision version
restriction permission
permission share
shareable_link link share
trash delete
archive zip
checksum hash
path location
tree hierarchy
glob pattern
pattern regex
regex search
grep search
diff compare
tail log
pid process
stdout output
stdin input
"""
